"""Trains a network, and watches it."""

import sys
from pathlib import Path

import compress

digits = Path(__file__).parents[2] / "models" / "digits"
job = compress.Distill(
    digits / "digits.onnx",
    output=sys.argv[1],
    from_nothing=True,
    data=digits / "train.npz",
    eval=digits / "test.npz",
    epochs=12,
    batch=32,
    lr=0.003,
)
for metrics in job:
    print(f"epoch {metrics.epoch} of {metrics.epochs}: loss {metrics.loss}, {metrics.metric} {metrics.score:.2%}")
print(job.report)
