"""A model as PyTorch runs it: the nodes of an ONNX file, one after the other, on PyTorch's functions.

`torch.compile` unrolls the loop, so that what it compiles is the network. Operators and attributes that aren't here are an error with
their name.
"""

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper


def padded(x, pads, value=0.0):
    """Pads the last axes; ONNX has all that come before, then all behind."""
    half = len(pads) // 2
    order = [pads[i + side * half] for i in reversed(range(half)) for side in (0, 1)]
    return F.pad(x, order, value=value) if any(pads) else x


def convolution(of, x, w, b=None):
    pads, n = of.get("pads", [0] * 2 * (w.dim() - 2)), w.dim() - 2
    conv = (F.conv1d, F.conv2d)[n - 1]
    if pads[:n] == pads[n:]:
        return conv(x, w, b, of.get("strides", 1), pads[:n], of.get("dilations", 1), of.get("group", 1))
    return conv(padded(x, pads), w, b, of.get("strides", 1), 0, of.get("dilations", 1), of.get("group", 1))


def pool(of, x):
    x = padded(x, of.get("pads", [0] * 4), -torch.inf)
    return F.max_pool2d(x, of["kernel_shape"], of.get("strides", 1), ceil_mode=bool(of.get("ceil_mode", 0)))


def gemm(of, a, b, c=None):
    a, b = a.mT if of.get("transA") else a, b.mT if of.get("transB") else b
    y = of.get("alpha", 1.0) * (a @ b) if of.get("alpha", 1.0) != 1 else a @ b
    return y if c is None else y + of.get("beta", 1.0) * c


def normalised(of, x, scale, bias=None):
    return F.layer_norm(x, x.shape[of.get("axis", -1) % x.dim() :], scale, bias, of.get("epsilon", 1e-5))


def reshaped(of, x, sizes):
    return x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(sizes)])


def mean(of, x, axes=None):
    return x.mean(tuple(of.get("axes", axes)), keepdim=bool(of.get("keepdims", 1)))


def batch_normalised(of, x, scale, bias, average, variance):
    return F.batch_norm(x, average, variance, scale, bias, eps=of.get("epsilon", 1e-5))


OPERATORS = {
    "Add": lambda of, a, b: a + b,
    "BatchNormalization": batch_normalised,
    "Clip": lambda of, x, low=None, high=None: torch.clamp(x, low, high),
    "Concat": lambda of, *x: torch.cat(x, of["axis"]),
    "Conv": convolution,
    "Div": lambda of, a, b: a / b,
    "Dropout": lambda of, x, *_: x,
    "Erf": lambda of, x: torch.erf(x),
    "Flatten": lambda of, x: x.flatten(of.get("axis", 1)),
    "Gemm": gemm,
    "GlobalAveragePool": lambda of, x: x.mean((2, 3), keepdim=True),
    "HardSigmoid": lambda of, x: torch.clamp(of.get("alpha", 0.2) * x + of.get("beta", 0.5), 0, 1),
    "Identity": lambda of, x: x,
    "LayerNormalization": normalised,
    "MatMul": lambda of, a, b: a @ b,
    "MaxPool": pool,
    "Mul": lambda of, a, b: a * b,
    "ReduceMean": mean,
    "Relu": lambda of, x: F.relu(x),
    "Reshape": reshaped,
    "Sigmoid": lambda of, x: torch.sigmoid(x),
    "Softmax": lambda of, x: torch.softmax(x, of.get("axis", -1)),
    "Sub": lambda of, a, b: a - b,
    "Transpose": lambda of, x: x.permute(of["perm"]),
}


# The attributes that are heeded, and those that change nothing where they have this value.
HEEDED = {
    "BatchNormalization": {"epsilon"},
    "Concat": {"axis"},
    "Conv": {"dilations", "group", "kernel_shape", "pads", "strides"},
    "Flatten": {"axis"},
    "Gemm": {"alpha", "beta", "transA", "transB"},
    "HardSigmoid": {"alpha", "beta"},
    "LayerNormalization": {"axis", "epsilon"},
    "MaxPool": {"ceil_mode", "kernel_shape", "pads", "strides"},
    "ReduceMean": {"axes", "keepdims"},
    "Softmax": {"axis"},
    "Transpose": {"perm"},
}
NEUTRAL = {
    "allowzero": 0,
    "auto_pad": b"NOTSET",
    "dilations": [1, 1],
    "momentum": None,
    "noop_with_empty_axes": 0,
    "seed": None,
    "stash_type": 1,
    "storage_order": 0,
    "training_mode": 0,
}


def checked(node):
    """The attributes of a node."""
    if node.op_type not in OPERATORS:
        raise NotImplementedError(node.op_type)
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    for name, value in attributes.items():
        known = name in HEEDED.get(node.op_type, ()) or name in NEUTRAL and NEUTRAL[name] in (None, value)
        if not known:
            raise NotImplementedError(f"{name} of {node.op_type}")
    return attributes


class OnnxModule(torch.nn.Module):
    """The model of a file. Weights are buffers, so that `.to()` moves and casts them; integers are sizes, and stay numbers."""

    def __init__(self, path):
        super().__init__()
        graph = onnx.load(path).graph
        self.sizes, self.nodes = {}, []
        constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant":
                constants[node.output[0]] = numpy_helper.to_array(helper.get_attribute_value(node.attribute[0]))
        self.names = {}
        for i, (name, value) in enumerate(constants.items()):
            if value.dtype == np.float32:
                self.register_buffer(f"w{i}", torch.from_numpy(value.copy()))
                self.names[name] = f"w{i}"
            else:
                self.sizes[name] = value.tolist()
        for node in graph.node:
            if node.op_type == "Constant":
                continue
            attributes = checked(node)
            self.nodes.append((OPERATORS[node.op_type], attributes, list(node.input), node.output[0]))
        self.inputs = [value.name for value in graph.input if value.name not in constants]
        self.outputs = [value.name for value in graph.output]

    def forward(self, *inputs):
        values = dict(zip(self.inputs, inputs, strict=True))

        def read(name):
            if name in self.names:
                return getattr(self, self.names[name])
            return self.sizes[name] if name in self.sizes else values.get(name)

        for operator, attributes, operands, output in self.nodes:
            values[output] = operator(attributes, *(read(name) for name in operands))
        return [values[name] for name in self.outputs]
