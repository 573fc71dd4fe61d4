"""Channels that go: beside torch-pruning, what each part of one command keeps, and what real models gain.

    TORCH_PYTHON -m pip install torch numpy onnx onnxruntime torch-pruning      (not by tests/run)
    COMPRESS_ZOO=DIR TORCH_PYTHON tests/bench/channels.py [--seeds 3] [--epochs 2] [--only peer|together|speed]

`peer`: BnCnn on Fashion at half of its multiply-accumulates, trained on 50,000 of Fashion's training pictures and scored in ONNX
Runtime on the other 10,000, which the dense model has seen: agreement with it is what counts. torch-pruning ranks groups by
their norm, over all layers (global) or in each (local), with the ratio that leaves half, and its model is trained in PyTorch by
labels (AdamW at 0.001 with cosine and warm-up, batch 64), and by labels and the dense model, as `compress` does.
`together`: the same model by each combination of --prune-channels, --prune and --int8.
`speed`: real models with a quarter and half of the multiply-accumulates removed, by norms: latency here and in ONNX Runtime.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
import torch_models
from onnx import numpy_helper
from recover import BINARY, ours, outputs, row, score
from train_accuracy import sets

MODELS = Path(os.environ["COMPRESS_ZOO"]) / "models"
BNCNN = MODELS / "bncnn_fashion.onnx"
FRACTION = 0.5


def sliced(ratio, everywhere):
    """BnCnn after torch-pruning with a ratio of channels, and the share of multiply-accumulates that it has left."""
    import torch_pruning as tp

    net = torch_models.BnCnn()
    state = {i.name: torch.from_numpy(numpy_helper.to_array(i).copy()) for i in onnx.load(BNCNN).graph.initializer}
    net.load_state_dict(state, strict=False)
    net.eval()
    example = torch.zeros(1, 1, 28, 28)
    whole, _ = tp.utils.count_ops_and_params(net, example)
    pruner = tp.pruner.BasePruner(
        net, example, importance=tp.importance.GroupMagnitudeImportance(p=2), global_pruning=everywhere,
        pruning_ratio=ratio, ignored_layers=[net.f2],
    )  # fmt: skip
    pruner.step()
    return net, tp.utils.count_ops_and_params(net, example)[0] / whole


def theirs(everywhere):
    """torch-pruning at the smallest ratio, in steps of a hundredth, that leaves at most half."""
    for ratio in np.arange(0.01, 0.98, 0.01):
        net, left = sliced(float(ratio), everywhere)
        if left <= 1 - FRACTION:
            return net, left
    raise SystemExit("torch-pruning never reached the budget")


def teacher():
    """The dense model in PyTorch."""
    net, _ = sliced(0.0, False)
    return net


def peer(args):
    train, held = sets()["Fashion"]
    print(
        "| BnCnn, half the multiply-accumulates | left | top-1, % | agreement, % | cross-entropy | |\n|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        np.savez(folder / "train.npz", x=train[0], y=train[1])
        np.savez(folder / "held.npz", x=held[0], y=held[1])
        dense = outputs(BNCNN, held[0])
        row("dense", "100%", [score(BNCNN, dense, held)])
        tensors = [torch.from_numpy(v) for v in train]
        for everywhere in (True, False):
            name = f"torch-pruning, {'global' if everywhere else 'local'}"
            for taught in (None, False, True):
                scores = []
                for seed in range(1 if taught is None else args.seeds):
                    torch.manual_seed(seed)
                    net, left = theirs(everywhere)
                    if taught is not None:
                        torch_models.train(
                            net, *tensors, args.epochs, 64, 1e-3, seed, teacher=teacher() if taught else None
                        )
                    torch_models.export(net, (1, 28, 28), str(folder / "theirs.onnx"))
                    scores.append(score(folder / "theirs.onnx", dense, held))
                how = {None: "no training", False: "labels", True: "labels and teacher"}[taught]
                row(f"{name}, {how}", f"{left:.1%}", scores)
        cut = ["--prune-channels", FRACTION, "--cut-anyway"]
        for what, flags in [
            ("by norms, plain slicing, no training", ["--channels-by", "l2", "--prune-by", "magnitude", "--epochs", 0]),
            ("by norms, solved, no training", ["--channels-by", "l2", "--epochs", 0]),
            ("no training", ["--epochs", 0]),
            (f"{args.epochs} epochs", ["--epochs", args.epochs]),
            ("plain command", []),
        ]:
            scores, seconds = [], []
            for seed in range(args.seeds):
                out, report, took = ours(BNCNN, folder, seed, *cut, *flags)
                scores.append(score(out, dense, held))
                seconds.append(took)
            left = report["output"]["macs"] / report["input"]["macs"]
            row(f"compress, {what}", f"{left:.1%}", scores, f"{statistics.mean(seconds):.0f} s")


def latency(paths, threads=1, seconds=1.0):
    """Milliseconds of each model in ONNX Runtime, by turns: the medians."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    runs = []
    for path in paths:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        feeds = {}
        for i in session.get_inputs():
            shape = [1 if not isinstance(d, int) else d for d in i.shape]
            feeds[i.name] = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        runs.append((session, feeds, []))
    until = time.perf_counter() + seconds * len(paths)
    while time.perf_counter() < until:
        for session, feeds, times in runs:
            began = time.perf_counter()
            session.run(None, feeds)
            times.append(1e3 * (time.perf_counter() - began))
    return [statistics.median(times[3:]) for _, _, times in runs]


def command(*arguments):
    """Runs the command; what it prints, if that is JSON."""
    done = subprocess.run([BINARY, *map(str, arguments)], check=True, capture_output=True, text=True)
    return json.loads(done.stdout) if "--json" in arguments else None


def together(args):
    train, held = sets()["Fashion"]
    print(
        "| BnCnn | MACs left | kB | zstd kB | ours ms | ORT ms | top-1, % | agreement, % | cross-entropy |\n"
        + "|---" * 9
        + "|"
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        np.savez(folder / "train.npz", x=train[0], y=train[1])
        np.savez(folder / "held.npz", x=held[0], y=held[1])
        dense = outputs(BNCNN, held[0])
        parts = {"channels 50%": ["--prune-channels", FRACTION], "zeros 80%": ["--prune", 0.8], "INT8": ["--int8"]}
        for n in range(4):
            for names in itertools.combinations(parts, n):
                flags = [f for name in names for f in parts[name]]
                if n == 0 or names == ("INT8",):
                    trained = []
                else:
                    trained = ["--epochs", args.epochs]
                scores, figures = [], []
                for seed in range(args.seeds):
                    out, report, _ = ours(BNCNN, folder, seed, *flags, *trained)
                    scores.append(score(out, dense, held))
                    here = command("check", out, "--against", BNCNN, "--threads", 1, "--json")["speed"]["after_ms"]
                    figures.append((here, latency([out])[0]))
                made = report["output"]
                here, there = (statistics.mean(v) for v in zip(*figures))
                cells = [f"{made['macs'] / report['input']['macs']:.0%}", f"{made['bytes'] / 1000:.0f}",
                         f"{made['zstd_bytes'] / 1000:.0f}", f"{here:.4f}", f"{there:.4f}"]  # fmt: skip
                row(" + ".join(names) or "as it is", " | ".join(cells), scores)


def speed(args):
    print("| model | asked | MACs left | parameters left | ours, ms | ONNX Runtime, ms |\n" + "|---" * 6 + "|")
    names = ["resnet20_cifar10", "tinyvit_fashion", "squeezenet1_1_imagenet", "ultraface_rfb320", "yunet_n_320"]
    with tempfile.TemporaryDirectory() as temporary:
        plain, out = Path(temporary) / "plain.onnx", Path(temporary) / "out.onnx"
        for name in names:
            model = MODELS / f"{name}.onnx"
            # Beside the simplified model: what simplification gains is another matter.
            command(model, "-o", plain, "--quiet", "--no-check", "--force")
            for fraction, anyway in itertools.product((0.25, 0.5), (False, True)):
                flags = ["--prune-channels", fraction, "--prune-by", "magnitude", *(["--cut-anyway"] if anyway else [])]
                report = command(model, "-o", out, "--json", "--force", "--threads", 1, *flags)
                ms = command("check", out, "--against", plain, "--threads", 1, "--json")["speed"]
                before, after = latency([plain, out])
                left = [report["output"][k] / report["input"][k] for k in ("macs", "parameters")]
                print(
                    f"| {name} | {fraction:.0%}{', --cut-anyway' if anyway else ''} | {left[0]:.0%} | {left[1]:.0%} "
                    f"| {ms['before_ms']:.3f} -> {ms['after_ms']:.3f} ({ms['speedup']:.2f}x) "
                    f"| {before:.3f} -> {after:.3f} ({before / after:.2f}x) |",
                    flush=True,
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--only", choices=["peer", "together", "speed"])
    args = parser.parse_args()
    for part in (peer, together, speed):
        if args.only in (None, part.__name__):
            part(args)
