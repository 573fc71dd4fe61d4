"""What `compress check --engine onnxruntime` says beside what a script with ONNX Runtime measures, in turns.

    .venv/bin/python tests/bench/deployed.py FOLDER... [--threads 1] [--turns 3]

A folder has model.onnx, calibration.npz and evaluation.npz. Each model is quantised once; then the command and a script that
runs both files with ONNX Runtime's usual options measure by turns. Accuracy is the signal to noise of the worst output, in
decibels, on all samples, in batches. Speed is how many times as fast INT8 is: of the script the
ratio of the least times, of the command what it says: the median of all turns, the least and the most. A star marks
accuracies that differ by more than 0.05 dB and speeds by more than 3%. The command is COMPRESS_BIN, or
target/release/compress.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort

ROOT = Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get("COMPRESS_BIN", str(ROOT / "target/release/compress"))
LIBRARY = Path(ort.__file__).parent / "capi"
RUNS = 40


def command(*args):
    """What the command says, as JSON."""
    ran = subprocess.run([BINARY, *map(str, args), "--json"], capture_output=True, text=True)
    assert ran.returncode in (0, 9), ran.stderr
    return json.loads(ran.stdout)


def sessions(files, threads):
    """The models as a script loads them."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    return [ort.InferenceSession(str(f), options, providers=["CPUExecutionProvider"]) for f in files]


def decibels(models, data):
    """The signal to noise of the worst output over all samples."""
    names = [i.name for i in models[0].get_inputs()]
    arrays = [data[n] if n in data else data["x"] for n in names]
    signal, noise = {}, {}
    # What ONNX Runtime makes of a sample may depend on whether it is alone.
    first = models[0].get_inputs()[0].shape[0]
    step = first if isinstance(first, int) else 16
    for i in range(0, len(arrays[0]) // step * step, step):
        feed = {n: a[i : i + step] for n, a in zip(names, arrays)}
        for k, (a, b) in enumerate(zip(*(m.run(None, feed) for m in models))):
            if a.dtype.kind == "f":
                a, b = a.astype(np.float64), b.astype(np.float64)
                signal[k] = signal.get(k, 0) + np.square(a).sum()
                noise[k] = noise.get(k, 0) + np.square(a - b).sum()
    return min(10 * np.log10(signal[k] / noise[k]) for k in signal if noise[k] > 0)


def speedup(models, data):
    """How many times as fast the second model is: runs by turns."""
    names = [i.name for i in models[0].get_inputs()]
    feed = {n: (data[n] if n in data else data["x"])[:1] for n in names}
    times = [[], []]
    for turn in range(RUNS + 5):
        for model, taken in zip(models, times):
            start = time.perf_counter()
            model.run(None, feed)
            if turn >= 5:
                taken.append(time.perf_counter() - start)
    return min(times[0]) / min(times[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    print("| model | accuracy, command | script | speed, command | script |\n|---|---|---|---|---|")
    for folder in asked.folders:
        model, data = folder / "model.onnx", dict(np.load(folder / "evaluation.npz"))
        with tempfile.TemporaryDirectory() as place:
            out = Path(place) / "int8.onnx"
            command(model, "--int8", "--data", folder / "calibration.npz", "-o", out, "--no-check")
            ours, theirs = [], []
            for _ in range(asked.turns):
                args = (
                    "--eval",
                    folder / "evaluation.npz",
                    "--engine",
                    "onnxruntime",
                    "--ort",
                    LIBRARY,
                    "--check",
                    "full",
                )
                said = command("check", out, "--against", model, *args, "--threads", asked.threads)
                ours.append(said["speed"]["speedup"])
                models = sessions([model, out], asked.threads)
                theirs.append(speedup(models, data))
            db = [min(o["sqnr_db"] for o in said["accuracy"]["outputs"] if o["sqnr_db"]), decibels(models, data)]
        far = "*" if abs(db[0] - db[1]) > 0.05 else ""
        apart = "*" if abs(np.median(ours) / np.median(theirs) - 1) > 0.03 else ""
        shown = [f"{np.median(r):.2f}x ({min(r):.2f} to {max(r):.2f})" for r in (ours, theirs)]
        print(f"| {folder.name} | {db[0]:.2f} dB{far} | {db[1]:.2f} dB | {shown[0]}{apart} | {shown[1]} |", flush=True)


if __name__ == "__main__":
    main()
