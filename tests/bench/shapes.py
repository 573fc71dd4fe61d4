"""Models with random weights in the shapes of real ones, for the benchmarks."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# Expansion, channels, blocks, and the first block's stride: table 2 of the MobileNetV2 paper.
MOBILENET = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
# Name, input channels, output channels, size, kernel, stride, groups.
CONVOLUTIONS = (
    ("3x3 64->64 56", 64, 64, 56, 3, 1, 1),
    ("1x1 256->64 56", 256, 64, 56, 1, 1, 1),
    ("7x7/2 3->64 224", 3, 64, 224, 7, 2, 1),
    ("3x3/2 3->64 224", 3, 64, 224, 3, 2, 1),
    ("3x3 16->64 55", 16, 64, 55, 3, 1, 1),
    ("1x1 512->1000 13", 512, 1000, 13, 1, 1, 1),
    ("3x3 16->16 32", 16, 16, 32, 3, 1, 1),
    ("depthwise 96 56", 96, 96, 56, 3, 1, 96),
)


class Net:
    """A chain of layers in the making."""

    def __init__(self, shape, kind=np.float32):
        self.rng = np.random.default_rng(0)
        self.nodes, self.weights = [], []
        self.input = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(np.dtype(kind)), shape)

    def const(self, value):
        """An initializer."""
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def normal(self, *shape, over=1):
        """Weights of a layer with `over` inputs that keep the size of what passes."""
        return self.rng.standard_normal(shape, np.float32) * np.float32((2 / over) ** 0.5)

    def op(self, kind, *inputs, **attributes):
        """A node; arrays become initializers."""
        inputs = [i if isinstance(i, str) else self.const(i) for i in inputs]
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], f"{kind.lower()}{len(self.nodes)}", **attributes))
        return name

    def conv(self, x, channels, outputs, kernel, stride=1, groups=1):
        """Conv with a bias and padding that keeps the size."""
        over = channels // groups * kernel**2
        weight = self.normal(outputs, channels // groups, kernel, kernel, over=over)
        bias = self.normal(outputs, over=200)
        attributes = dict(pads=[kernel // 2] * 4, strides=[stride] * 2, group=groups)
        return self.op("Conv", x, weight, bias, **attributes)

    def save(self, path, y, rank, kind=TensorProto.FLOAT):
        """Writes the model, whose output is `y`."""
        output = helper.make_tensor_value_info(y, kind, [None] * rank)
        graph = helper.make_graph(self.nodes, "shape", [self.input], [output], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, path)


def mobilenet_v2(path):
    """MobileNetV2 1.0 at 224, batch normalisation folded."""
    net = Net(["batch", 3, 224, 224])

    def layer(x, *how, **rest):
        return net.op("Clip", net.conv(x, *how, **rest), np.float32(0), np.float32(6))

    x, channels = layer("x", 3, 32, 3, stride=2), 32
    for expansion, outputs, blocks, first in MOBILENET:
        for block in range(blocks):
            stride = first if block == 0 else 1
            wide = expansion * channels
            y = x if expansion == 1 else layer(x, channels, wide, 1)
            y = layer(y, wide, wide, 3, stride=stride, groups=wide)
            y = net.conv(y, wide, outputs, 1)
            x = net.op("Add", x, y) if stride == 1 and channels == outputs else y
            channels = outputs
    x = net.op("Flatten", net.op("GlobalAveragePool", layer(x, channels, 1280, 1)))
    y = net.op("Gemm", x, net.normal(1000, 1280, over=1280), net.normal(1000), transB=1)
    net.save(path, y, 2)


def matmul_1024(path):
    """Four layers of 1024 by 1024."""
    net = Net(["batch", 1024])
    x = "x"
    for _ in range(4):
        x = net.op("Relu", net.op("MatMul", x, net.normal(1024, 1024, over=1024)))
    net.save(path, x, 2)


def convolution(path, channels, outputs, size, kernel, stride, groups):
    """A single convolution with Relu, in floats."""
    net = Net(["batch", channels, size, size])
    net.save(path, net.op("Relu", net.conv("x", channels, outputs, kernel, stride, groups)), 4)


def integer_convolution(path, channels, outputs, size, kernel, stride, groups):
    """The same between DequantizeLinear and QuantizeLinear, from U8 to U8."""
    net = Net(["batch", channels, size, size], np.uint8)
    zero, scale = np.uint8(120), np.float32(0.02)
    weight = net.rng.integers(-127, 128, (outputs, channels // groups, kernel, kernel), np.int8)
    weight_scale = np.abs(net.normal(outputs, over=200)) + np.float32(0.01)
    bias = net.rng.integers(-(10**4), 10**4, outputs, np.int32)
    x = net.op("DequantizeLinear", "x", scale, zero)
    w = net.op("DequantizeLinear", weight, weight_scale, np.zeros(outputs, np.int8), axis=0)
    b = net.op("DequantizeLinear", bias, scale * weight_scale, axis=0)
    attributes = dict(pads=[kernel // 2] * 4, strides=[stride] * 2, group=groups)
    y = net.op("Relu", net.op("Conv", x, w, b, **attributes))
    net.save(path, net.op("QuantizeLinear", y, np.float32(0.5), np.uint8(0)), 4, TensorProto.UINT8)
