"""The models of the training benches as PyTorch has them, and training in PyTorch by the recipe of `compress distill`.

Needs PyTorch, which tests/run does not install: python3 -m venv DIR && DIR/bin/pip install torch numpy onnx.
"""

import gzip
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class LeNet5(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.f1, self.f2, self.f3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.max_pool2d(F.relu(self.c2(x)), 2).flatten(1)
        return self.f3(F.relu(self.f2(F.relu(self.f1(x)))))


class BnCnn(nn.Module):
    def __init__(self, widths=(16, 32, 32), hidden=128):
        super().__init__()
        a, b, c = widths
        self.c1, self.b1 = nn.Conv2d(1, a, 3, padding=1, bias=False), nn.BatchNorm2d(a)
        self.c2, self.b2 = nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b)
        self.c3, self.b3 = nn.Conv2d(b, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.f1, self.f2 = nn.Linear(c * 49, hidden), nn.Linear(hidden, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.b1(self.c1(x))), 2)
        x = F.max_pool2d(F.relu(self.b2(self.c2(x))), 2)
        x = F.relu(self.b3(self.c3(x))).flatten(1)
        return self.f2(F.relu(self.f1(x)))


class Block(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)
        self.stride, self.more = stride, outer - inner

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.stride > 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.more // 2, self.more - self.more // 2))
        return F.relu(y + x)


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        sizes = [(16, 16, 1)] * 3 + [(16, 32, 2), (32, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 64, 1)]
        self.blocks = nn.Sequential(*[Block(*size) for size in sizes])
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        x = self.blocks(F.relu(self.bn1(self.conv1(x))))
        return self.linear(x.mean((2, 3)))


class Layer(nn.Module):
    """A layer of an encoder, which normalises what it reads (Xiong et al. 2020)."""

    def __init__(self, width, heads):
        super().__init__()
        self.n1, self.n2, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.n1(x)
        q, k, v = (f(y).unflatten(2, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.transpose(2, 3) * q.shape[-1] ** -0.5, -1)
        x = x + self.o((weights @ v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Encoder(nn.Module):
    def __init__(self, width=192, heads=3, layers=4):
        super().__init__()
        self.layers = nn.Sequential(*[Layer(width, heads) for _ in range(layers)])
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        return self.linear(self.norm(self.layers(x)).mean(1))


MODELS = {
    "lenet5": (LeNet5, (1, 28, 28)),
    "bncnn": (BnCnn, (1, 28, 28)),
    "resnet20": (ResNet20, (3, 32, 32)),
    "encoder": (Encoder, (64, 192)),
}


def export(model, shape, path):
    """Writes the model as ONNX with BatchNormalization kept."""
    model.eval()
    torch.onnx.export(
        model, torch.zeros(1, *shape), path, input_names=["input"], output_names=["output"], opset_version=17,
        dynamic_axes={"input": {0: "batch"}, "output": {0: "batch"}}, dynamo=False, do_constant_folding=False,
        training=torch.onnx.TrainingMode.PRESERVE,
    )  # fmt: skip


def idx(path):
    """An IDX file."""
    with gzip.open(path) as f:
        data = f.read()
    rank = data[3]
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(rank)]
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)


def distilled(made, taught, labels):
    """The usual loss of `compress` with a teacher and labels: 0.9 of the divergence at temperature 4, 0.1 of the cross-entropy."""
    log, wanted = F.log_softmax(made / 4, 1), F.log_softmax(taught / 4, 1)
    return 0.9 * 16 * F.kl_div(log, wanted, reduction="batchmean", log_target=True) + 0.1 * F.cross_entropy(
        made, labels
    )


def train(model, x, y, epochs, batch, rate, seed, decay=1e-2, warmup=0.05, masks=(), teacher=None, bf16=False):
    """AdamW, cosine with warm-up, clipped gradients: what `compress distill --epochs --batch --lr` does. `masks` are pairs of a
    weight and which of its elements stay; by labels alone unless there is a teacher."""
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": weights, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=rate)
    steps, step = epochs * (len(x) // batch), 0
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=generator)
        for i in range(len(x) // batch):
            done = step / steps
            factor = done / warmup if done < warmup else (1 + math.cos(math.pi * (done - warmup) / (1 - warmup))) / 2
            for g in optimiser.param_groups:
                g["lr"] = rate * factor
            at = order[i * batch : (i + 1) * batch]
            optimiser.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                made = model(x[at]).float()
            if teacher is None:
                loss = F.cross_entropy(made, y[at])
            else:
                with torch.no_grad():
                    taught = teacher(x[at])
                loss = distilled(made, taught, y[at])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimiser.step()
            with torch.no_grad():
                for weight, mask in masks:
                    weight.mul_(mask)
            step += 1
    model.eval()
    return model
