"""Small models, made on the spot."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def model(nodes, inputs, outputs, weights=(), opset=17, ir=8, domains=()):
    """A model. Inputs and outputs are (name, shape) or (name, shape, type); weights a dict."""

    def info(v):
        name, shape, *rest = v
        return helper.make_tensor_value_info(name, rest[0] if rest else FLOAT, shape)

    graph = helper.make_graph(
        nodes,
        "small",
        [info(v) for v in inputs],
        [info(v) for v in outputs],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in dict(weights).items()],
    )
    imports = [helper.make_opsetid(d, v) for d, v in [("", opset), *domains]]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir)


def node(op, inputs, outputs, name="", **attributes):
    """A node; names separated by spaces."""
    return helper.make_node(op, inputs.split(" "), outputs.split(" "), name=name or outputs.split(" ")[0], **attributes)


def floats(seed, *shape, scale=1.0):
    """Normal numbers."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def mlp(batch="batch", width=16, classes=4, opset=17):
    """Two Gemm with a Relu between: input [batch, 8], output [batch, classes]."""
    return model(
        [
            node("Gemm", "input w1 b1", "h", "first", transB=1),
            node("Relu", "h", "a", "act"),
            node("Gemm", "a w2 b2", "output", "second", transB=1),
        ],
        [("input", [batch, 8])],
        [("output", [batch, classes])],
        {
            "w1": floats(1, width, 8),
            "b1": floats(2, width, scale=0.1),
            "w2": floats(3, classes, width, scale=0.3),
            "b2": floats(4, classes, scale=0.1),
        },
        opset=opset,
    )


def cnn(batch="batch", size=12, opset=17, channels=3):
    """Conv, BatchNormalization, Relu, MaxPool, Conv, Relu, global pool, Gemm: 5 classes."""
    return model(
        [
            node("Conv", "input w1", "c1", "conv1", pads=[1, 1, 1, 1]),
            node("BatchNormalization", "c1 s o m v", "n1", "bn1"),
            node("Relu", "n1", "r1"),
            node("MaxPool", "r1", "p1", kernel_shape=[2, 2], strides=[2, 2]),
            node("Conv", "p1 w2 b2", "c2", "conv2", pads=[1, 1, 1, 1]),
            node("Relu", "c2", "r2"),
            node("GlobalAveragePool", "r2", "g"),
            node("Flatten", "g", "f"),
            node("Gemm", "f w3 b3", "output", "head", transB=1),
        ],
        [("input", [batch, channels, size, size])],
        [("output", [batch, 5])],
        {
            "w1": floats(1, 8, channels, 3, 3, scale=0.3),
            "s": floats(2, 8, scale=0.2) + 1,
            "o": floats(3, 8, scale=0.1),
            "m": floats(4, 8, scale=0.1),
            "v": floats(5, 8) ** 2 + np.float32(0.5),
            "w2": floats(6, 16, 8, 3, 3, scale=0.2),
            "b2": floats(7, 16, scale=0.1),
            "w3": floats(8, 5, 16),
            "b3": floats(9, 5),
        },
        opset=opset,
    )


def branches():
    """A residual sum, a depthwise layer, a concatenation and an average pool: what INT8 has to join."""
    return model(
        [
            node("Conv", "input w1 b1", "c1", "stem", pads=[1, 1, 1, 1]),
            node("Relu", "c1", "r1"),
            node("Conv", "r1 w2 b2", "c2", "inner", pads=[1, 1, 1, 1]),
            node("Add", "c2 r1", "sum"),
            node("Relu", "sum", "r2"),
            node("Conv", "r2 w3 b3", "c3", "depthwise", group=8, pads=[1, 1, 1, 1]),
            node("Clip", "c3 zero six", "r3"),
            node("Conv", "r2 w4 b4", "c4", "pointwise"),
            node("Concat", "r3 c4", "cat", axis=1),
            node("AveragePool", "cat", "pool", kernel_shape=[2, 2], strides=[2, 2]),
            node("Conv", "pool w5 b5", "c5", "last"),
            node("GlobalAveragePool", "c5", "g"),
            node("Flatten", "g", "output"),
        ],
        [("input", ["batch", 3, 8, 8])],
        [("output", ["batch", 6])],
        {
            "w1": floats(1, 8, 3, 3, 3, scale=0.3),
            "w2": floats(2, 8, 8, 3, 3, scale=0.1),
            "w3": floats(3, 8, 1, 3, 3, scale=0.4),
            "w4": floats(4, 4, 8, 1, 1, scale=0.4),
            "w5": floats(5, 6, 12, 1, 1, scale=0.3),
            **{f"b{i}": floats(10 + i, n, scale=0.1) for i, n in ((1, 8), (2, 8), (3, 8), (4, 4), (5, 6))},
            "zero": np.float32(0),
            "six": np.float32(6),
        },
    )


def save(made, folder: Path, name="model.onnx") -> Path:
    """Writes a model, without checking it."""
    path = folder / name
    path.write_bytes(made.SerializeToString())
    return path


def ops(path):
    """The operators of a model, in order, Constant left out."""
    return [n.op_type for n in onnx.load(path).graph.node if n.op_type != "Constant"]


def opset(path):
    """The version of the default operator set that a model imports."""
    return next(i.version for i in onnx.load(path).opset_import if i.domain == "")


def initializers(path):
    """The initializers of a model, by name."""
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def convolutions(path):
    """How many layers ONNX Runtime runs as integers, from a graph it optimised."""
    return sum(n.op_type == "QLinearConv" for n in onnx.load(path).graph.node)
