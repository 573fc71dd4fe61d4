"""Whether two builds of the command write the same bytes.

    python tests/bench/same_bytes.py BEFORE AFTER [MODEL.onnx ...]

Both programs compress the digits under many sets of flags, and each given model. The table says of each result whether its
bytes are equal, whether they are but for the metadata (version and digest of the recipe), or what differs.
"""

import argparse
import hashlib
import subprocess
import tempfile
from pathlib import Path

import onnx

DIGITS = Path(__file__).resolve().parents[2] / "models/digits"
DATA = ["--data", DIGITS / "train.npz"]
FLAGS = [
    [],
    ["--target", "onnxruntime"],
    ["--int8"],
    ["--int8", *DATA],
    ["--int8", "--calibration", "mse", "--weight-bits", "4", *DATA],
    ["--int8", "--exclude", "conv1", "--calibration", "percentile", *DATA],
    ["--prune", "0.5"],
    ["--prune", "0.8", "--epochs", "0", *DATA],
    ["--prune", "0.8", "--prune-by", "taylor", "--epochs", "1", *DATA],
    ["--prune-pattern", "2:4", "--epochs", "1", "--int8", *DATA],
    ["--prune-channels", "0.3", "--cut-anyway", "--epochs", "1", *DATA],
    ["--qat", "--epochs", "1", *DATA],
    ["--strip", "--external-data"],
]


def made(program, model, flags, folder):
    """What the program writes, or its error."""
    out = folder / "out.onnx"
    command = [program, model, "-o", out, "--force", "--no-check", "--quiet", *flags]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=1800)
    if done.returncode not in (0, 9):
        return None, done.stderr.splitlines()[:1]
    files = sorted(p for p in folder.iterdir() if not p.name.endswith(".json"))
    return out, [hashlib.sha256(p.read_bytes()).hexdigest() for p in files]


def plain(path):
    """A model without what tells of how it was made."""
    model = onnx.load(path)
    kept = [p for p in model.metadata_props if not p.key.startswith("compress.")]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()


def verdict(programs, model, flags):
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        (one, first), (two, second) = (made(p, model, flags, Path(d)) for p, d in zip(programs, (a, b)))
        if first == second:
            return "equal" if one else f"the same error: {first}"
        if one and two and plain(one) == plain(two):
            return "equal but for metadata"
        return f"DIFFERENT: {first} and {second}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("models", nargs="*", type=Path)
    args = parser.parse_args()
    programs = (args.before, args.after)
    runs = [(DIGITS / "digits.onnx", flags) for flags in FLAGS]
    runs += [(model, flags) for model in args.models for flags in ([], ["--int8"], ["--prune", "0.5"])]
    for model, flags in runs:
        shown = " ".join(f.name if isinstance(f, Path) else f for f in flags)
        print(f"{model.stem:<28}{shown:<72}{verdict(programs, model, flags)}", flush=True)


if __name__ == "__main__":
    main()
