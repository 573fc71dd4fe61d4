"""Training on data that is larger than what a job may keep in memory, and on pictures that have to be decoded.

    .venv/bin/python tests/bench/train_stream.py [--only memory|workers] [--folder FOLDER]

`memory`: a job with a teacher on 2 GB of random pictures (.npy of u8, then of f32) beside the same on a hundredth of
them. Nothing of the set may stay in memory, so the peaks have to be near each other. 3 GB must be free in FOLDER.

`workers`: a job on 5,000 PNG and 5,000 JPEG pictures, which are decoded, resized, cropped and flipped, with 1, 2 and 3
threads for that. The processor time over the time that passed tells how many cores were busy; samples a second and
where the time went are the job's own figures.

The command is COMPRESS_BIN, or target/release/compress. Run it on idle cores. Memory is measured as in large.py.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from large import run
from onnx import TensorProto, helper
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("COMPRESS_BIN", str(ROOT / "target/release/compress"))
BYTES = 2 << 30
PICTURES = 5_000


def small_model(path, side, classes, seed, channels=8):
    """Two convolutions and a classifier on pictures of three channels."""
    rng = np.random.default_rng(seed)

    def weight(name, *shape):
        data = rng.standard_normal(shape, np.float32) * np.float32((2 / np.prod(shape[1:])) ** 0.5)
        return helper.make_tensor(name, TensorProto.FLOAT, shape, data.tobytes(), raw=True)

    nodes = [
        helper.make_node("Conv", ["input", "w1"], ["c1"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("GlobalAveragePool", ["r2"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w3"], ["logits"], transB=1),
    ]
    weights = [weight("w1", channels, 3, 3, 3), weight("w2", 16, channels, 3, 3), weight("w3", classes, 16)]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, side, side])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def pictures(path, samples, dtype, side):
    """An array of random pictures, written a part at a time."""
    array = np.lib.format.open_memmap(path, "w+", dtype, (samples, 3, side, side))
    rng = np.random.default_rng(0)
    for first in range(0, samples, 4096):
        part = array[first : first + 4096]
        bytes_ = dtype == np.uint8
        part[:] = rng.integers(0, 256, part.shape, np.uint8) if bytes_ else rng.random(part.shape, np.float32)
    array.flush()


def memory(folder):
    """Peaks on all of a set and on a hundredth of it."""
    side = 64
    student, teacher = (small_model(folder / f"{i}.onnx", side, 10, i) for i in range(2))
    pictures(folder / "eval.npy", 500, np.float32, side)
    print("| set | samples | seconds | samples/s | memory, MB | with mapped files, MB |")
    print("|---|---|---|---|---|---|", flush=True)
    for dtype in (np.uint8, np.float32):
        samples = BYTES // (3 * side * side * np.dtype(dtype).itemsize)
        for count in (samples // 100, samples):
            data, out = folder / "data.npy", folder / "out.onnx"
            pictures(data, count, dtype, side)
            command = [BINARY, "distill", student, "--teacher", teacher, "--data", data, "--eval", folder / "eval.npy",
                       "-o", out, "--epochs", "1", "--force", "--quiet"]  # fmt: skip
            done = run([str(part) for part in command], folder)
            if done is None:
                sys.exit(f"failed: {' '.join(map(str, command))}")
            speed = json.loads(out.with_suffix(".report.json").read_text())["training"]["samples_per_second"]
            size = data.stat().st_size / 1e6
            print(f"| {np.dtype(dtype).name}, {size:.0f} MB | {count} | {done[0]:.1f} | {speed:.0f} | {done[1]:.0f} | "
                  f"{done[2]:.0f} |", flush=True)  # fmt: skip
            data.unlink()


def workers(folder):
    """How busy the cores are while pictures are decoded."""
    rng = np.random.default_rng(0)
    classes = 10
    for kind in ("png", "jpg"):
        for i in range(PICTURES):
            place = folder / kind / f"class{i % classes}"
            place.mkdir(parents=True, exist_ok=True)
            # Smooth, so that they are packed as photographs are.
            small = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8))
            small.resize((96, 96), Image.Resampling.BICUBIC).save(place / f"{i:05}.{kind}")
    print("| pictures | model | workers | seconds | cores busy | samples/s | says |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for channels in (8, 64):
        student = small_model(folder / "student.onnx", 64, classes, 0, channels)
        for kind in ("png", "jpg"):
            for count in (1, 2, 3):
                out = folder / "out.onnx"
                command = [BINARY, "distill", student, "--data", folder / kind, "-o", out, "--epochs", "2", "--force",
                           "--quiet", "--preprocess", "resize=72,crop=64,scale=255", "--augment", "flip,crop=4",
                           "--workers", str(count)]  # fmt: skip
                before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
                subprocess.run(command, check=True)
                seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
                busy = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / seconds
                training = json.loads(out.with_suffix(".report.json").read_text())["training"]
                print(f"| {kind} | {channels} channels | {count} | {seconds:.1f} | {busy:.2f} | "
                      f"{training['samples_per_second']:.0f} | {training['bound']} |", flush=True)  # fmt: skip


def main():
    """Both, or what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["memory", "workers"])
    parser.add_argument("--folder", default=tempfile.gettempdir())
    args = parser.parse_args()
    parts = {"memory": memory, "workers": workers}
    for what in [args.only] if args.only else parts:
        with tempfile.TemporaryDirectory(dir=args.folder, prefix="train-stream-") as folder:
            parts[what](Path(folder))


if __name__ == "__main__":
    main()
