"""What training wins back after pruning and quantisation, beside PyTorch's fine-tuning of the same mask.

    TORCH_PYTHON -m pip install torch numpy onnx onnxruntime      (not by tests/run)
    COMPRESS_ZOO=DIR TORCH_PYTHON tests/bench/recover.py [--seeds 3] [--epochs 2] [--only lenet5|bncnn|resnet20]

LeNet-5 on MNIST (scored on its test pictures) and BnCnn on Fashion (trained on 50,000 of its training pictures and scored on the
other 10,000, which the dense model has seen: agreement with it is what counts). PyTorch fine-tunes under the mask of plain global
magnitude over the layers that `compress` prunes (all but the first and the last), on labels, by AdamW at 0.001 with cosine and
warm-up, batch 64, as often as `compress --epochs`. ResNet-20 is trained without labels on made-up pictures (noise of several
sizes), and compared with the dense model on others: that is a divergence, no accuracy. Every model is scored in ONNX Runtime.
"""

import argparse
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
from train_accuracy import sets

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("COMPRESS_BIN", str(ROOT / "target/release/compress"))
MODELS = {
    "lenet5": ("lenet5_mnist.onnx", torch_models.LeNet5, "MNIST", ["c2", "f1", "f2"]),
    "bncnn": ("bncnn_fashion.onnx", torch_models.BnCnn, "Fashion", ["c2", "c3", "f1"]),
}


def outputs(path, x):
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {name: x[i : i + 1000]})[0] for i in range(0, len(x), 1000)])


def score(path, dense, held):
    """Top-1 and agreement with the dense model in percent, and the cross-entropy."""
    made = outputs(path, held[0])
    top = made.max(1, keepdims=True)
    log = made - top - np.log(np.exp(made - top).sum(1, keepdims=True))
    loss = -log[np.arange(len(log)), held[1]].mean()
    choice = made.argmax(1)
    return 100 * (choice == held[1]).mean(), 100 * (choice == dense.argmax(1)).mean(), loss


def theirs(make, model, layers, fraction, train, epochs, seed, path):
    """PyTorch's fine-tuning under the mask of plain magnitude."""
    torch.manual_seed(seed)
    net = make()
    state = {i.name: torch.from_numpy(numpy_helper.to_array(i).copy()) for i in onnx.load(model).graph.initializer}
    net.load_state_dict(state, strict=False)
    weights = [getattr(net, name).weight for name in layers]
    every = torch.cat([w.detach().abs().flatten() for w in weights])
    threshold = every.kthvalue(round(fraction * len(every))).values
    masks = [w.detach().abs() > threshold for w in weights]
    with torch.no_grad():
        for w, mask in zip(weights, masks):
            w.mul_(mask)
    torch_models.train(net, *map(torch.from_numpy, train), epochs, 64, 1e-3, seed, masks=list(zip(weights, masks)))
    torch_models.export(net, (1, 28, 28), str(path))


def pictures(count, seed):
    """Made-up colour pictures: noise of several sizes, normalised as ResNet-20 wants it."""
    rng = np.random.default_rng(seed)
    x = np.zeros((count, 3, 32, 32), np.float32)
    for size in (2, 4, 8, 16, 32):
        noise = rng.standard_normal((count, 3, size, size)).astype(np.float32)
        x += noise.repeat(32 // size, 2).repeat(32 // size, 3) * (0.2 * (2 / size) ** 0.5)
    x = (0.5 + x + 0.2 * rng.standard_normal((count, 3, 1, 1)).astype(np.float32)).clip(0, 1)
    mean, std = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
    return (x - mean[:, None, None]) / std[:, None, None]


def divergence():
    """ResNet-20 without labels: agreement with the dense model, and the Kullback-Leibler divergence from it."""
    model = Path(os.environ["COMPRESS_ZOO"]) / "models/resnet20_cifar10.onnx"
    print("| ResNet-20, no labels | agreement, % | divergence | seconds |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        held = pictures(2000, 1)
        np.savez(folder / "train.npz", x=pictures(6000, 0))
        np.savez(folder / "held.npz", x=held)

        def log(x):
            x = x - x.max(1, keepdims=True)
            return x - np.log(np.exp(x).sum(1, keepdims=True))

        dense = log(outputs(model, held))
        for fraction in (0.5, 0.7, 0.9):
            for what, *flags in [
                ("magnitude", "--epochs", 0, "--prune-by", "magnitude"),
                ("reconstruction", "--epochs", 0),
                ("recovery, plain command",),
            ]:
                out, _, took = ours(model, folder, 0, "--prune", fraction, *flags)
                made = log(outputs(out, held))
                same = 100 * (made.argmax(1) == dense.argmax(1)).mean()
                far = (np.exp(dense) * (dense - made)).sum(1).mean()
                print(f"| {fraction:.0%}, {what} | {same:.2f} | {far:.4f} | {took:.0f} |", flush=True)


def ours(model, folder, seed, *flags):
    """Runs the command; the path of what it made, its report and its seconds."""
    out, began = folder / "ours.onnx", time.perf_counter()
    command = [BINARY, model, "--data", folder / "train.npz", "--eval", folder / "held.npz", "--seed", seed, "--json", "--force",
               "-o", out, *flags]  # fmt: skip
    done = subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True)
    return out, json.loads(done.stdout), time.perf_counter() - began


def row(model, what, scores, note=""):
    columns = []
    for values in zip(*scores):
        digits = 4 if max(values) < 3 else 2
        spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
        columns.append(f"{statistics.mean(values):.{digits}f}{spread}")
    print(f"| {model} | {what} | {' | '.join(columns)} | {note} |", flush=True)


def main(args):
    data = sets()
    print("| model | what | top-1, % | agreement, % | cross-entropy | |\n|---|---|---|---|---|---|")
    for name in [args.only] if args.only else MODELS:
        file, make, dataset, layers = MODELS[name]
        model, (train, held) = Path(os.environ["COMPRESS_ZOO"]) / "models" / file, data[dataset]
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            np.savez(folder / "train.npz", x=train[0], y=train[1])
            np.savez(folder / "held.npz", x=held[0], y=held[1])
            dense = outputs(model, held[0])
            row(name, "dense", [score(model, dense, held)])

            for fraction in args.fractions:
                scores = []
                for seed in range(args.seeds):
                    theirs(make, model, layers, fraction, train, args.epochs, seed, folder / "theirs.onnx")
                    scores.append(score(folder / "theirs.onnx", dense, held))
                row(name, f"{fraction:.0%}, PyTorch fine-tuning", scores)
                pruning = ["--prune", fraction]
                trained = ["--epochs", args.epochs]
                variants = [("compress", [*pruning, *trained])]
                if fraction == 0.9:
                    untrained = [*pruning, "--epochs", 0, "--calibration-samples", 200]
                    variants += [
                        ("compress, magnitude without training", [*untrained, "--prune-by", "magnitude"]),
                        ("compress, reconstruction from 200 samples", untrained),
                        ("compress --qat", [*pruning, *trained, "--qat"]),
                        ("compress --int8, plain command", [*pruning, "--int8"]),
                    ]
                for what, flags in variants:
                    scores, seconds = [], []
                    for seed in range(args.seeds):
                        out, _, took = ours(model, folder, seed, *flags)
                        scores.append(score(out, dense, held))
                        seconds.append(took)
                    row(name, f"{fraction:.0%}, {what}", scores, f"{statistics.mean(seconds):.0f} s")
            for what, flags in [
                ("PTQ, 4-bit weights", ["--int8"]),
                ("QAT, 4-bit weights", ["--qat", "--epochs", args.epochs]),
            ]:
                scores = []
                for seed in range(args.seeds):
                    scores.append(score(ours(model, folder, seed, *flags, "--weight-bits", 4)[0], dense, held))
                row(name, what, scores)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--fractions", type=lambda s: [float(f) for f in s.split(",")], default=[0.9, 0.95, 0.98])
    parser.add_argument("--only", choices=[*MODELS, "resnet20"])
    args = parser.parse_args()
    if args.only != "resnet20":
        main(args)
    if args.only in (None, "resnet20"):
        divergence()
