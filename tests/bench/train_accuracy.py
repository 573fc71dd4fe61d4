"""What training reaches: `compress distill` beside PyTorch by the same recipe, and a teacher beside labels alone.

    TORCH_PYTHON -m pip install torch numpy onnx onnxruntime      (not by tests/run)
    COMPRESS_ZOO=DIR TORCH_PYTHON tests/bench/train_accuracy.py [--epochs 3] [--seeds 3] [--only same|teacher] [--precisions f32,bf16]

`same`: LeNet-5 and BnCnn from nothing on MNIST (all of its training pictures, its test pictures to score) and on
Fashion (50,000 of its training pictures, the other 10,000 to score): AdamW at 0.001, cosine with warm-up, batch 64.
`teacher`: a student with a quarter of BnCnn's weights on Fashion, by labels alone and by labels and BnCnn. BnCnn itself was
trained on all of Fashion's training pictures, those held out here too, so that it knows them: the student's gain is
what counts. Every model is scored in ONNX Runtime. PyTorch trains in f32.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
import torch_models
from torch_models import BnCnn, LeNet5, export, idx

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("COMPRESS_BIN", str(ROOT / "target/release/compress"))
BATCH, RATE = 64, 1e-3


def sets():
    """Pictures and labels to train on and to score, by name."""
    data = Path(os.environ["COMPRESS_ZOO"]) / "data"

    def read(name, mean, std):
        pictures, labels = sorted(data.glob(f"{name}*images*")), sorted(data.glob(f"{name}*labels*"))
        x = (idx(pictures[0]).astype(np.float32)[:, None] / 255 - mean) / std
        return x.astype(np.float32), idx(labels[0]).astype(np.int64)

    fashion = read("fashion", 0.2860, 0.3530)
    return {
        "MNIST": (read("mnist-train", 0.1307, 0.3081), read("mnist-t10k", 0.1307, 0.3081)),
        "Fashion": (tuple(v[:50_000] for v in fashion), tuple(v[50_000:] for v in fashion)),
    }


def score(path, held):
    """Top-1 in ONNX Runtime, in percent."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name, right = session.get_inputs()[0].name, 0
    for i in range(0, len(held[0]), 1000):
        (out,) = session.run(None, {name: held[0][i : i + 1000]})
        right += (out.argmax(1) == held[1][i : i + 1000]).sum()
    return 100 * right / len(held[0])


def ours(model, folder, epochs, seed, *more):
    """Trains with the command; the path of what it made."""
    out = folder / "ours.onnx"
    command = [BINARY, "distill", model, "--data", folder / "train.npz", "--eval", folder / "held.npz", "--epochs", epochs,
               "--batch", BATCH, "--lr", RATE, "--seed", seed, "--quiet", "--force", "-o", out, *more]  # fmt: skip
    subprocess.run([str(c) for c in command], check=True)
    return out


def spread(values):
    return f"{statistics.mean(values):.2f} ({', '.join(f'{v:.2f}' for v in values)})"


def main(args):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for dataset, (train, held) in sets().items():
            np.savez(folder / "train.npz", x=train[0], y=train[1])
            np.savez(folder / "held.npz", x=held[0], y=held[1])
            x, y = torch.from_numpy(train[0]), torch.from_numpy(train[1])
            for make in (LeNet5, BnCnn) if args.only != "teacher" else ():
                theirs_all, ours_all = [], {precision: [] for precision in args.precisions}
                for seed in range(args.seeds):
                    torch.manual_seed(seed)
                    trained = torch_models.train(make(), x, y, args.epochs, BATCH, RATE, seed)
                    export(trained, (1, 28, 28), str(folder / "theirs.onnx"))
                    theirs_all.append(score(folder / "theirs.onnx", held))
                    for precision, scores in ours_all.items():
                        more = ["--from-nothing", "--precision", precision]
                        scores.append(score(ours(folder / "theirs.onnx", folder, args.epochs, seed, *more), held))
                columns = " | ".join([spread(theirs_all), *map(spread, ours_all.values())])
                print(f"| {make.__name__} | {dataset} | {columns} |", flush=True)
            if dataset == "Fashion" and args.only != "same":
                teacher = Path(os.environ["COMPRESS_ZOO"]) / "models/bncnn_fashion.onnx"
                student = BnCnn(widths=(8, 16, 16), hidden=64)
                count = sum(p.numel() for p in student.parameters())
                export(student, (1, 28, 28), str(folder / "student.onnx"))
                alone, taught = [], []
                for seed in range(args.seeds):
                    made = ours(folder / "student.onnx", folder, args.long, seed, "--from-nothing")
                    alone.append(score(made, held))
                    made = ours(
                        folder / "student.onnx", folder, args.long, seed, "--from-nothing", "--teacher", teacher
                    )
                    taught.append(score(made, held))
                print(f"student of {count} weights, {args.long} epochs: labels {spread(alone)}, "
                      f"labels and teacher {spread(taught)}; teacher {score(teacher, held):.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--long", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=["same", "teacher"])
    parser.add_argument("--precisions", type=lambda s: s.split(","), default=["f32"])
    main(parser.parse_args())
