"""Quantises a network on batches in memory, and gates on a score of one's own."""

import sys
from pathlib import Path

import numpy as np

import compress

digits = Path(__file__).parents[2] / "models" / "digits"
train, test = np.load(digits / "train.npz"), np.load(digits / "test.npz")
batches = [{"x": train["x"][i : i + 64], "y": train["y"][i : i + 64]} for i in range(0, len(train["x"]), 64)]


def accuracy(predict: compress.Predict) -> float:
    """The share of the test pictures that a model names right."""
    return float(np.mean(predict(test["x"])["logits"].argmax(axis=1) == test["y"]))


report = compress.compress(
    digits / "digits.onnx",
    output=sys.argv[1],
    int8=True,
    data=batches,
    evaluate=accuracy,
    max_drop=0.01,
)
print(report)

model = compress.Model(sys.argv[1])
print(model.inputs, "->", model.run(test["x"][:4])["logits"].argmax(axis=1))
