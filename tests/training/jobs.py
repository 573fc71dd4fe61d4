"""What tests of training jobs share: the digits, and a job's call."""

import json

import numpy as np
from support import ROOT, read_report, run_onnx

DIGITS = ROOT / "models/digits"
STUDENT, TRAIN, TEST = DIGITS / "digits.onnx", DIGITS / "train.npz", DIGITS / "test.npz"
# Weights between the first and the last layer: --prune prunes these.
INNER = 55_296
# Quicker than to solve for the remaining weights first.
GRADUAL = ["--prune-by", "magnitude"]


def accuracy(model, data=TEST):
    """The share of right classes in ONNX Runtime."""
    data = np.load(data)
    (scores,) = run_onnx(model, {"input": data["x"]})
    return (scores.argmax(1) == data["y"]).mean()


def distill(compress, out, *args, student=STUDENT, code=0, **rest):
    """Trains; gives what the command said and the report."""
    done = compress("distill", student, "--data", TRAIN, "--eval", TEST, "-o", out, *args, code=code, **rest)
    report = out.with_suffix(".report.json")
    return done, read_report(report) if report.exists() else None


def scales(out):
    """By what the loss was multiplied, as the log tells."""
    lines = (out.with_suffix(".job") / "metrics.jsonl").read_text().splitlines()
    return [r["scale"] for r in map(json.loads, lines) if "scale" in r]
