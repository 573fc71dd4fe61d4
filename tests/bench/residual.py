"""Residual networks with BatchNormalization, pruned and trained: beside torch-pruning for channels and PyTorch for zeros.

    TORCH_PYTHON -m pip install torch numpy onnx onnxruntime torch-pruning scikit-image scikit-learn pooch   (not by tests/run)
    COMPRESS_ZOO=DIR TORCH_PYTHON tests/bench/residual.py NET... [--seeds 1] [--epochs 2]

A net is CHANNELS/BLOCKS/DATA: `8-16-32/1/fashion` has three stages of one block each. `fashion`: trained and pruned on 50,000 of
Fashion's training pictures, scored on the other 10,000. `crops`: 32 by 32 crops of 16 photographs, whose number is the class:
20,000 of the upper two thirds, scored on 4,000 of the lower third. The dense net is trained in PyTorch for ten epochs. The peer
removes channels until half of the multiply-accumulates are left, or the smallest nine tenths of all weights but those of the
first and the last layer; then it trains by labels with AdamW at 0.001, cosine and warm-up, batch 64. `compress` trains for as
many epochs, and for as many as it chooses ("plain"). Every model is scored in ONNX Runtime: top-1, agreement with the dense net,
cross-entropy.
"""

import argparse
import copy
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch_models
import torch_pruning
from recover import ours, outputs, row, score
from train_accuracy import sets


class Block(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.conv2, self.bn2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        self.shortcut = None
        if stride > 1 or inner != outer:
            self.shortcut = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class Residual(nn.Module):
    def __init__(self, shape, channels, blocks, classes):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(shape[0], channels[0], 3, padding=1, bias=False), nn.BatchNorm2d(channels[0])
        stages, inner = [], channels[0]
        for stage, outer in enumerate(channels):
            for block in range(blocks):
                stages.append(Block(inner, outer, 2 if stage > 0 and block == 0 else 1))
                inner = outer
        self.blocks, self.linear = nn.Sequential(*stages), nn.Linear(inner, classes)

    def forward(self, x):
        return self.linear(self.blocks(F.relu(self.bn1(self.conv1(x)))).mean((2, 3)))


def crops(seed=0):
    """Crops of photographs, and which photograph each is of: those to train on, and those to score on."""
    from skimage import data
    from sklearn.datasets import load_sample_images

    names = [
        "astronaut",
        "cat",
        "chelsea",
        "coffee",
        "rocket",
        "colorwheel",
        "hubble_deep_field",
        "immunohistochemistry",
        "retina",
    ]
    found = [getattr(data, name)()[..., :3] for name in names] + load_sample_images().images
    found += [
        np.repeat(getattr(data, name)()[..., None], 3, 2) for name in ("brick", "grass", "gravel", "camera", "coins")
    ]
    rng, made = np.random.default_rng(seed), []
    for count, part in ((20_000, 0), (4_000, 1)):
        y = rng.integers(len(found), size=count)
        x = np.empty((count, 3, 32, 32), np.float32)
        for i, which in enumerate(y):
            picture, cut = found[which], len(found[which]) * 2 // 3
            picture = picture[cut:] if part else picture[:cut]
            size = int(rng.integers(32, 65))
            top, left = (int(rng.integers(side - size + 1)) for side in picture.shape[:2])
            at = np.arange(32) * size // 32
            crop = picture[top:, left:][at][:, at].transpose(2, 0, 1)
            x[i] = (crop[..., ::-1] if rng.random() < 0.5 else crop) / np.float32(128) - 1
        made.append((x, y.astype(np.int64)))
    return made


def channels(net, shape, left):
    """torch-pruning by the norm of groups over all layers, in steps of a hundredth, until no more than this share is left."""
    example = torch.zeros(1, *shape)
    whole, _ = torch_pruning.utils.count_ops_and_params(net, example)
    for ratio in np.arange(0.01, 0.98, 0.01):
        made = copy.deepcopy(net)
        torch_pruning.pruner.BasePruner(
            made, example, importance=torch_pruning.importance.GroupMagnitudeImportance(p=2), global_pruning=True,
            pruning_ratio=float(ratio), ignored_layers=[made.linear],
        ).step()  # fmt: skip
        if torch_pruning.utils.count_ops_and_params(made, example)[0] <= left * whole:
            return made
    raise SystemExit("torch-pruning never reached the budget")


def masked(net, fraction):
    """A copy without the smallest weights, and the masks under which it is trained."""
    net = copy.deepcopy(net)
    weights = [m.weight for name, m in net.named_modules() if isinstance(m, nn.Conv2d) and name != "conv1"]
    every = torch.cat([w.detach().abs().flatten() for w in weights])
    threshold = every.kthvalue(round(fraction * len(every))).values
    masks = [(w, w.detach().abs() > threshold) for w in weights]
    with torch.no_grad():
        for w, mask in masks:
            w.mul_(mask)
    return net, masks


def bench(name, args, folder):
    widths, blocks, kind = name.split("/")
    train, held = sets()["Fashion"] if kind == "fashion" else crops()
    shape, classes = train[0].shape[1:], int(train[1].max()) + 1
    np.savez(folder / "train.npz", x=train[0], y=train[1])
    np.savez(folder / "held.npz", x=held[0], y=held[1])
    tensors = [torch.from_numpy(v) for v in train]
    torch.manual_seed(0)
    net = Residual(shape, [int(w) for w in widths.split("-")], int(blocks), classes)
    torch_models.train(net, *tensors, 10, 64, 2e-3, 0)
    dense, theirs = folder / "dense.onnx", folder / "theirs.onnx"
    torch_models.export(net, shape, str(dense))
    answers = outputs(dense, held[0])
    row(name, "dense", [score(dense, answers, held)])
    for what, flags in (
        ("half of the channels", ["--prune-channels", 0.5, "--cut-anyway"]),
        ("90% zeros", ["--prune", 0.9]),
    ):
        scores = []
        for seed in range(args.seeds):
            made, masks = (channels(net, shape, 0.5), ()) if what.startswith("half") else masked(net, 0.9)
            torch_models.train(made, *tensors, args.epochs, 64, 1e-3, seed, masks=masks)
            torch_models.export(made, shape, str(theirs))
            scores.append(score(theirs, answers, held))
        row(name, f"{what}, peer", scores)
        for how, epochs in [("", ["--epochs", args.epochs]), (", plain", [])]:
            scores, seconds = [], []
            for seed in range(args.seeds):
                out, _, took = ours(dense, folder, seed, *flags, *epochs)
                scores.append(score(out, answers, held))
                seconds.append(took)
            row(name, f"{what}, compress{how}", scores, f"{statistics.mean(seconds):.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("nets", nargs="+")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parsed = parser.parse_args()
    print("| net | what | top-1, % | agreement, % | cross-entropy | |\n|---|---|---|---|---|---|")
    for net in parsed.nets:
        with tempfile.TemporaryDirectory() as temporary:
            bench(net, parsed, Path(temporary))
