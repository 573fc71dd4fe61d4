"""Training speed: `compress distill` beside PyTorch eager, on the same data, in one run.

    TORCH_PYTHON -m pip install torch numpy onnx      (not by tests/run)
    TORCH_PYTHON tests/bench/train.py [--turns N] [--models lenet5,...] [--batches 64,256] [--threads 1,2] [--precisions f32,bf16]

Samples a second of whole training steps (data loading included on our side, excluded in PyTorch, whose samples lie in
memory), the best of the turns, and the peak memory of each process. In bf16 PyTorch trains under autocast. The command is
COMPRESS_BIN, or target/release/compress. Run it on idle cores: PyTorch's threads collapse on busy ones.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
# Enough for some seconds a measurement: what the first steps take, getting memory above all, counts on our side.
SAMPLES = {"lenet5": 60_000, "bncnn": 20_000, "resnet20": 6_000, "encoder": 6_000}


def peak(pid):
    """The peak resident memory of a running process, in MB."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return max((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), default=0)


def measured(command, env):
    """Runs a command that prints JSON, and gives that with the peak memory."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    most = 0
    while process.poll() is None:
        most = max(most, peak(process.pid))
        time.sleep(0.01)
    out, err = process.communicate()
    if process.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{err}")
    return json.loads(out), most


def worker(name, data, batch, threads, precision):
    """PyTorch in a process of its own."""
    import torch
    import torch_models

    torch.set_num_threads(threads)
    loaded = np.load(data)
    x, y = torch.from_numpy(loaded["x"]), torch.from_numpy(loaded["y"])
    held = len(x) // 5
    x, y = x[held:], y[held:]
    model = torch_models.MODELS[name][0]()
    bf16 = precision == "bf16"
    torch_models.train(model, x[: 4 * batch], y[: 4 * batch], 1, batch, 1e-3, 0, bf16=bf16)
    began = time.perf_counter()
    torch_models.train(model, x, y, 1, batch, 1e-3, 0, bf16=bf16)
    print(json.dumps({"speed": len(x) // batch * batch / (time.perf_counter() - began)}))


def main(args):
    import torch_models

    binary = os.environ.get("COMPRESS_BIN", str(ROOT / "target/release/compress"))
    print("| model | batch | threads | precision | PyTorch, samples/s | compress, samples/s | ratio | PyTorch, MB | compress, MB |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models:
            make, shape = torch_models.MODELS[name]
            model, data = Path(folder) / f"{name}.onnx", Path(folder) / f"{name}.npz"
            torch_models.export(make(), shape, str(model))
            rng = np.random.default_rng(0)
            n = SAMPLES[name]
            np.savez(data, x=rng.standard_normal((n, *shape), np.float32), y=rng.integers(0, 10, n))
            for batch, threads in itertools.product(args.batches, args.threads):
                best = {precision: [0, 0, 0, 0] for precision in args.precisions}
                for _, precision in itertools.product(range(args.turns), args.precisions):
                    theirs, a = measured(
                        [sys.executable, __file__, "--worker", name, str(data), str(batch), str(threads), precision],
                        {**os.environ, "OMP_NUM_THREADS": str(threads)},
                    )
                    ours, b = measured(
                        [binary, "distill", str(model), "--data", str(data), "--epochs", "1", "--batch", str(batch),
                         "--threads", str(threads), "--precision", precision, "--json", "--force",
                         "-o", str(Path(folder) / "out.onnx")],
                        os.environ,
                    )  # fmt: skip
                    made = [theirs["speed"], ours["training"]["samples_per_second"], a, b]
                    best[precision] = [max(pair) for pair in zip(best[precision], made)]
                for precision, (theirs, ours, a, b) in best.items():
                    print(f"| {name} | {batch} | {threads} | {precision} | {theirs:.0f} | {ours:.0f} | {ours / theirs:.2f} "
                          f"| {a:.0f} | {b:.0f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
    else:
        parser = argparse.ArgumentParser()
        numbers = lambda s: [int(n) for n in s.split(",")]  # noqa: E731
        parser.add_argument("--turns", type=int, default=3)
        parser.add_argument("--models", type=lambda s: s.split(","), default=list(SAMPLES))
        parser.add_argument("--batches", type=numbers, default=[64, 256])
        parser.add_argument("--threads", type=numbers, default=[1, 2])
        parser.add_argument("--precisions", type=lambda s: s.split(","), default=["f32"])
        main(parser.parse_args())
