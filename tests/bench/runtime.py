"""Our runtime beside ONNX Runtime, in one run: whole models, or single convolutions.

    COMPRESS_ZOO=DIR .venv/bin/python tests/bench/runtime.py [--isa LIST] [--convolutions] [...]

Each model in FP32 and in INT8, which `compress --int8` made: the same file for both. A turn is a fresh process of each,
one after the other, that gives the median of its runs; the figure is the smallest median of all turns. ONNX Runtime runs
with bound inputs and outputs and its default settings but the number of threads. With --isa our kernels of each
instruction set are timed (COMPRESS_ISA). Single convolutions go from U8 to U8 in INT8, both converting from channels
first and back. The command is COMPRESS_BIN, or target/release/compress. A star marks what misses its target.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import shapes

ROOT = Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get("COMPRESS_BIN", str(ROOT / "target/release/compress"))
ZOO = {"squeezenet": "squeezenet1_1_imagenet", "resnet20": "resnet20_cifar10", "ultraface": "ultraface_rfb320"}
MADE = {"mobilenetv2": shapes.mobilenet_v2, "matmul1024": shapes.matmul_1024}
# At most this much of ONNX Runtime's time in INT8; in FP32 the same for all.
INT8_TARGET = {"squeezenet": 0.75, "resnet20": 0.75, "ultraface": 0.9, "mobilenetv2": 0.9}
FP32_TARGET = 1.15
# At least this much faster in INT8 than in FP32 on our own runtime.
SPEEDUP_TARGET = {("squeezenet", 1): 2.97, ("matmul1024", 8): 2.97}
WARMUP = 10


def by_onnx_runtime(model, batch, threads, runs):
    """Times a model in this process (see `main`) and prints the median in milliseconds."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding, rng = session.io_binding(), np.random.default_rng(0)
    for i in session.get_inputs():
        shape = [d if isinstance(d, int) else batch for d in i.shape]
        floats = i.type == "tensor(float)"
        value = rng.standard_normal(shape, np.float32) if floats else rng.integers(0, 256, shape, np.uint8)
        binding.bind_ortvalue_input(i.name, ort.OrtValue.ortvalue_from_numpy(value))
    for o in session.get_outputs():
        binding.bind_output(o.name)
    times = []
    for turn in range(WARMUP + runs):
        start = time.perf_counter()
        session.run_with_iobinding(binding)
        if turn >= WARMUP:
            times.append(time.perf_counter() - start)
    print(np.median(times) * 1e3)


def said(command):
    """What a command prints."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def ours(model, batch, threads, runs, isa):
    """Our median in milliseconds."""
    command = [BINARY, "bench", model, "--json", "--batch", str(batch), "--threads", str(threads), "--runs", str(runs)]
    done = subprocess.run(
        command, env=os.environ | ({"COMPRESS_ISA": isa} if isa else {}), capture_output=True, text=True
    )
    if done.returncode:
        # One model that fails is a hole in the table, not its end.
        print(f"failed: {' '.join(command)}\n{done.stderr}", file=sys.stderr)
        return float("nan")
    return json.loads(done.stdout)["median_ms"]


def theirs(model, batch, threads, runs):
    """ONNX Runtime's."""
    return float(said([sys.executable, __file__, "--worker", model, str(batch), str(threads), str(runs)]))


def best(model, batch, threads, args):
    """The smallest medians of all turns: ONNX Runtime's, and ours for each instruction set."""
    turns = []
    for _ in range(args.turns):
        turns.append([theirs(model, batch, threads, args.runs)])
        turns[-1] += [ours(model, batch, threads, args.runs, isa) for isa in args.isa]
    return np.min(turns, axis=0).tolist()


def fixed_batch(model):
    """The batch that a model insists on, or None."""
    first = onnx.load(model, load_external_data=False).graph.input[0].type.tensor_type.shape.dim[0]
    return first.dim_value if first.HasField("dim_value") else None


def head(args):
    """The head of a table: figures for each instruction set."""
    sets = [isa or "ours" for isa in args.isa]
    columns = ["model", "precision", "batch", "threads", "ORT ms"]
    columns += [c for s in sets for c in (f"{s} ms", f"{s}/ORT")] + ["target"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)


def row(name, precision, batch, threads, target, times):
    """A row of it."""
    first, *rest = times
    figures = [f"{first:.3f}"]
    for t in rest:
        missed = "*" if target and not t <= target * first else ""
        figures += [f"{t:.3f}", f"{t / first:.2f}{missed}"]
    wanted = f"{target:.2f}" if target else ""
    print(f"| {name} | {precision} | {batch} | {threads} | {' | '.join(figures)} | {wanted} |", flush=True)


def models(args, folder):
    """Whole models."""
    times = {}
    head(args)
    for name in args.models:
        fp32, int8 = folder / f"{name}.onnx", folder / f"{name}.int8.onnx"
        if name in MADE:
            MADE[name](fp32)
        else:
            fp32 = Path(os.environ["COMPRESS_ZOO"]) / "models" / f"{ZOO[name]}.onnx"
        said([BINARY, str(fp32), "--int8", "--no-check", "--quiet", "--force", "-o", str(int8)])
        only = fixed_batch(fp32)
        for batch in [b for b in args.batches if only in (None, b)]:
            for threads in args.threads:
                for precision, path in (("FP32", fp32), ("INT8", int8)):
                    found = best(str(path), batch, threads, args)
                    target = FP32_TARGET if precision == "FP32" else INT8_TARGET.get(name)
                    row(name, precision, batch, threads, target, found)
                    times[name, batch, threads, precision] = found[1:]
    print("\nINT8 over FP32, each on our own runtime:\n")
    sets = [isa or "ours" for isa in args.isa]
    print(f"| model | batch | threads | {' | '.join(sets)} | target |\n|{'---|' * (4 + len(sets))}")
    for (name, batch, threads, precision), fast in times.items():
        if precision == "INT8":
            target = SPEEDUP_TARGET.get((name, batch))
            ratios = [s / f for s, f in zip(times[name, batch, threads, "FP32"], fast)]
            figures = [f"{r:.2f}x{'*' if target and not r >= target else ''}" for r in ratios]
            print(f"| {name} | {batch} | {threads} | {' | '.join(figures)} | {target or ''} |")


def convolutions(args, folder):
    """Single convolutions."""
    head(args)
    for name, *how in shapes.CONVOLUTIONS:
        for precision, make in (("FP32", shapes.convolution), ("INT8", shapes.integer_convolution)):
            path = folder / "one.onnx"
            make(path, *how)
            for threads in args.threads:
                row(name, precision, 1, threads, None, best(str(path), 1, threads, args))


def main():
    def listed(of=str):
        return lambda text: [of(t) for t in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", type=listed(), default=[None], help="portable,avx2,avxvnni,avx512vnni,amx")
    parser.add_argument("--models", type=listed(), default=[*ZOO, *MADE], help=",".join([*ZOO, *MADE]))
    parser.add_argument("--batches", type=listed(int), default=[1, 8])
    parser.add_argument("--threads", type=listed(int), default=[1, 2])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--convolutions", action="store_true", help="single convolutions instead of models")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (convolutions if args.convolutions else models)(args, Path(folder))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        by_onnx_runtime(sys.argv[2], *map(int, sys.argv[3:]))
    else:
        main()
