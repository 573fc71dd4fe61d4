"""INT8 files in OpenVINO: ours beside NNCF's.

    python tests/bench/in_openvino.py FOLDER... [--threads 1] [--keep DIR]

A folder has model.onnx, calibration.npz and evaluation.npz, of samples. Each model is quantised by `compress --int8 --target openvino` and by
`nncf.quantize`, both with the calibration's samples. OpenVINO loads the original and both results; all three run by turns on one
sample, and the least time of each counts. The table tells how near the outputs are to the original's in OpenVINO (signal to noise
of the worst output over 32 samples), and how many times as fast as the original each file is. It needs openvino and nncf. The
command is COMPRESS_BIN, or target/release/compress.
"""

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get("COMPRESS_BIN", str(ROOT / "target/release/compress"))
SAMPLES = 32
TURNS = 40


def quantised(folder, out):
    """Files in INT8 by name; one that can't be made is an error message."""
    import nncf
    import onnx

    made = {}
    data = folder / "calibration.npz"
    ours = out / "compress.onnx"
    if not ours.exists():
        target = ["--int8", "--target", "openvino", "--force", "--no-check", "-q"]
        command = [BINARY, folder / "model.onnx", *target, "--data", data, "-o", ours]
        ran = subprocess.run([str(a) for a in command], capture_output=True, text=True)
        made["compress"] = ran.stderr.strip().splitlines()[-1] if ran.returncode else ours
    else:
        made["compress"] = ours
    theirs = out / "nncf.onnx"
    try:
        if not theirs.exists():
            model = onnx.load(folder / "model.onnx")
            arrays = np.load(data)
            names = [i.name for i in model.graph.input if i.name in arrays or "x" in arrays]
            rows = [arrays[n] if n in arrays else arrays["x"] for n in names]
            feeds = [{n: r[i : i + 1] for n, r in zip(names, rows)} for i in range(min(300, len(rows[0])))]
            onnx.save(nncf.quantize(model, nncf.Dataset(feeds), subset_size=len(feeds)), theirs)
        made["NNCF"] = theirs
    except Exception as e:
        made["NNCF"] = f"{type(e).__name__}: {str(e).splitlines()[0][:80]}"
    return made


def compiled(core, path, threads):
    """A model as OpenVINO loads it; what is not in INT8 computes in 32 bits, on processors with bfloat16 too."""
    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    return core.compile_model(str(path), "CPU", {"INFERENCE_NUM_THREADS": threads, **hints})


def run(model, feed):
    return [np.asarray(v) for v in model(feed).values()]


def decibels(before, after, feeds):
    """The signal to noise of the worst output."""
    signal, noise = {}, {}
    for feed in feeds:
        for k, (a, b) in enumerate(zip(run(before, feed), run(after, feed))):
            if a.dtype.kind == "f":
                a, b = a.astype(np.float64), b.astype(np.float64)
                signal[k] = signal.get(k, 0) + np.square(a).sum()
                noise[k] = noise.get(k, 0) + np.square(a - b).sum()
    return min((10 * np.log10(signal[k] / noise[k]) for k in signal if noise[k] > 0), default=np.inf)


def main():
    import openvino

    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder in which the INT8 files stay, and are found again")
    given = parser.parse_args()
    core = openvino.Core()
    print("| model | compress: dB | speed | NNCF: dB | speed | float, ms |\n|---|--:|--:|--:|--:|--:|")
    for folder in given.folders:
        with tempfile.TemporaryDirectory() as scratch:
            out = (given.keep or Path(scratch)) / folder.name
            out.mkdir(parents=True, exist_ok=True)
            made = quantised(folder, out)
            arrays = np.load(folder / "evaluation.npz")
            before = compiled(core, folder / "model.onnx", given.threads)
            names = [i.get_any_name() for i in before.inputs]
            rows = [arrays[n] if n in arrays else arrays["x"] for n in names]
            feeds = [{n: r[i : i + 1] for n, r in zip(names, rows)} for i in range(min(SAMPLES, len(rows[0])))]
            models = {"original": before}
            cells = {}
            for name, path in made.items():
                try:
                    models[name] = compiled(core, path, given.threads) if isinstance(path, Path) else None
                    cells[name] = f"{decibels(before, models[name], feeds):.1f}" if models[name] else str(path)
                except RuntimeError as e:
                    models[name], cells[name] = None, f"refused: {str(e).splitlines()[-1][:60]}"
            least = {name: np.inf for name in models}
            for _ in range(TURNS):
                for name, model in models.items():
                    if model:
                        began = time.perf_counter()
                        run(model, feeds[0])
                        least[name] = min(least[name], time.perf_counter() - began)
            speed = {n: f"{least['original'] / least[n]:.2f}x" if models.get(n) else "-" for n in made}
            print(
                f"| {folder.name} | {cells['compress']} | {speed['compress']} | {cells['NNCF']} | {speed['NNCF']} "
                f"| {1e3 * least['original']:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
