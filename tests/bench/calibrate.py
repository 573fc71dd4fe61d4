"""Calibration by percentiles: `compress` beside ONNX Runtime's own quantiser, in one run.

    COMPRESS_ZOO=DIR .venv/bin/python tests/bench/calibrate.py [SAMPLES]

SqueezeNet on SAMPLES (200) made-up pictures in one file, the same for both. Time is that of the whole process: ours is the
best of three turns, ONNX Runtime's that of one, as it takes a minute and keeps every activation of every sample. Memory
is the peak of what it allocates (RssAnon), sampled every 5 ms, and the peak with mapped files (VmHWM), such as the data.
The command is COMPRESS_BIN, or target/release/compress.
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from large import ROOT, run

TURNS = {"compress": 3, "ONNX Runtime": 1}
# What ours may cost: seconds and megabytes.
TARGET = 3, 300


def main(samples):
    binary = os.environ.get("COMPRESS_BIN", str(ROOT / "target/release/compress"))
    model = str(Path(os.environ["COMPRESS_ZOO"]) / "models/squeezenet1_1_imagenet.onnx")
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "data.npz")
        rng = np.random.default_rng(0)
        np.savez(data, data=rng.standard_normal((samples, 3, 224, 224), np.float32))
        commands = {
            # Its --eval keeps all samples for calibration.
            "compress": [binary, model, "--int8", "--calibration", "percentile", "--calibration-samples", str(samples),
                         "--data", data, "--eval", data, "--no-check", "--quiet", "--force",
                         "-o", str(Path(folder) / "ours.onnx")],
            "ONNX Runtime": [sys.executable, str(Path(__file__).with_name("int8.py")), "--worker", model, data,
                             str(Path(folder) / "theirs.onnx"), "Percentile"],
        }  # fmt: skip
        best = {}
        for name, command in commands.items():
            for turn in range(TURNS[name]):
                figures = run(command, folder)
                if figures is None:
                    sys.exit(f"failed: {' '.join(command)}")
                print(f"{name}, turn {turn + 1}: {figures[0]:.2f} s", file=sys.stderr, flush=True)
                best[name] = [min(pair) for pair in zip(figures, best.get(name, figures))]
    print(f"| percentile, {samples} samples | seconds | memory, MB | with mapped files, MB |\n|---|---|---|---|")
    for name, (seconds, own, mapped) in best.items():
        print(f"| {name} | {seconds:.2f} | {own:.0f} | {mapped:.0f} |")
    print(f"| target | {TARGET[0]} | {TARGET[1]} | |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
