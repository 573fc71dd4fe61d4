"""Measures digits.onnx in ONNX Runtime, whole and with its smallest inner weights left out.

pip install numpy==2.4.6 onnx==1.23.2 onnxruntime==1.31.1
python models/digits/check.py
"""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

HERE = Path(__file__).parent
FRACTIONS = [0, 0.5, 0.8, 0.9, 0.95, 0.98]


def accuracy(model, data):
    """The share of the pictures in `data` that `model` names rightly."""
    options = ort.SessionOptions()
    options.log_severity_level = 3  # it warns of what its own fusion of BatchNormalization leaves over
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"input": data["x"]})
    return (logits.argmax(1) == data["y"]).mean()


def pruned(model, fraction):
    """A copy without `fraction` of the weights, the smallest of all layers but the first and last."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    layers = [node.input[1] for node in copy.graph.node if node.op_type in ("Conv", "Gemm")][1:-1]
    tensors = [t for t in copy.graph.initializer if t.name in layers]
    weights = [numpy_helper.to_array(t) for t in tensors]
    magnitudes = np.sort(np.abs(np.concatenate([w.ravel() for w in weights])))
    count = round(fraction * len(magnitudes))
    threshold = magnitudes[count - 1] if count else -1
    for tensor, weight in zip(tensors, weights):
        rest = np.where(np.abs(weight) > threshold, weight, np.float32(0))
        tensor.CopyFrom(numpy_helper.from_array(rest, tensor.name))
    return copy


def main():
    model = onnx.load(HERE / "digits.onnx")
    onnx.checker.check_model(model, full_check=True)
    train, test = np.load(HERE / "train.npz"), np.load(HERE / "test.npz")
    for fraction in FRACTIONS:
        rest = pruned(model, fraction)
        print(f"{fraction:4.0%} left out: test {accuracy(rest, test):.2%}, training {accuracy(rest, train):.2%}")


if __name__ == "__main__":
    main()
