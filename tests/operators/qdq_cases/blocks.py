"""Pieces of real networks, quantised: what one layer gives another."""

import numpy as np

from .net import Cases, Net

cases = Cases(105)
SIX = (np.float32(0), np.float32(6))


def conv(net, q, weight, zero=0, relu=True, clip=False, **attributes):
    """Conv, Relu and QuantizeLinear, as quantisers write it."""
    w, scale = net.weight(cases.f32(*weight, scale=0.4), 0)
    b = net.bias(cases.f32(weight[0], scale=0.3), (q.numbers[0] * scale).astype(np.float32))
    y = net.op("Conv", net.dequantize(q), w, b, **attributes)
    if clip:
        y = net.op("Clip", y, *SIX)
    elif relu:
        y = net.op("Relu", y)
    return net.quantize(y, zero=zero)


def stem(net, channels, batch=1, size=8):
    """A first quantised value."""
    return net.quantize(net.input(cases.f32(batch, channels, size, size), dynamic=batch > 1), zero=117)


SAME = dict(pads=[1, 1, 1, 1])


def residual(batch):
    net = Net()
    x = conv(net, stem(net, 3, batch), (8, 3, 3, 3), **SAME)
    y = conv(net, x, (8, 8, 3, 3), **SAME)
    z = conv(net, y, (8, 8, 3, 3), zero=120, relu=False, **SAME)
    total = net.op("Relu", net.op("Add", net.dequantize(z), net.dequantize(x)))
    net.output(net.dequantize(net.quantize(total, zero=0)))
    cases.add(f"block_residual_{batch}", net, ["QLinearConv", "QLinearAdd"])


def downsampled():
    net = Net()
    x = conv(net, stem(net, 3), (8, 3, 3, 3), **SAME)
    y = conv(net, x, (12, 8, 3, 3), strides=[2, 2], **SAME)
    z = conv(net, y, (12, 12, 3, 3), zero=120, relu=False, **SAME)
    short = conv(net, x, (12, 8, 1, 1), zero=131, relu=False, strides=[2, 2])
    total = net.op("Relu", net.op("Add", net.dequantize(z), net.dequantize(short)))
    net.output(net.dequantize(net.quantize(total, zero=0)))
    cases.add("block_residual_downsampled", net, ["QLinearConv", "QLinearAdd"])


def fire(batch):
    net = Net()
    x = conv(net, stem(net, 3, batch), (8, 3, 3, 3), **SAME)
    x = net.quantize(net.op("MaxPool", net.dequantize(x), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1), like=x)
    squeeze = conv(net, x, (4, 8, 1, 1))
    left = conv(net, squeeze, (16, 4, 1, 1))
    right = conv(net, squeeze, (16, 4, 3, 3), **SAME)
    joined = net.quantize(net.op("Concat", net.dequantize(left), net.dequantize(right), axis=1), zero=0)
    last = conv(net, joined, (5, 32, 1, 1))
    net.output(net.dequantize(last))
    cases.add(f"block_fire_{batch}", net, "QLinearConv")


def inverted(batch, shortcut):
    net = Net()
    x = conv(net, stem(net, 3, batch), (8, 3, 3, 3), zero=128, relu=False, **SAME)
    y = conv(net, x, (24, 8, 1, 1), clip=True)
    y = conv(net, y, (24, 1, 3, 3), clip=True, group=24, strides=[1, 1] if shortcut else [2, 2], **SAME)
    y = conv(net, y, (8, 24, 1, 1), zero=125, relu=False)
    if shortcut:
        y = net.quantize(net.op("Add", net.dequantize(x), net.dequantize(y)), zero=126)
    net.output(net.dequantize(y))
    cases.add(f"block_inverted_{'add' if shortcut else 'stride'}_{batch}", net, "QLinearConv")


def squeeze_excite():
    net = Net()
    x = conv(net, stem(net, 3), (8, 3, 3, 3), **SAME)
    s = net.quantize(net.op("GlobalAveragePool", net.dequantize(x)), zero=0)
    s = conv(net, s, (4, 8, 1, 1))
    s = conv(net, s, (8, 4, 1, 1), zero=120, relu=False)
    gate = net.quantize(net.op("Sigmoid", net.dequantize(s)), zero=0)
    net.output(net.qdq(net.op("Mul", net.dequantize(x), net.dequantize(gate)), zero=0))
    why = "a Sigmoid may be approximated before it is rounded"
    cases.add("block_squeeze_excite", net, ["QLinearConv", "QLinearMul"], steps=1, why=why)


def classifier(batch):
    net = Net()
    x = conv(net, stem(net, 3, batch), (16, 3, 3, 3), strides=[2, 2], **SAME)
    x = net.quantize(net.op("GlobalAveragePool", net.dequantize(x)), zero=0)
    x = net.quantize(net.op("Flatten", net.dequantize(x)), like=x)
    w, scale = net.weight(cases.f32(10, 16), 0)
    b = net.bias(cases.f32(10), (x.numbers[0] * scale).astype(np.float32))
    y = net.op("Gemm", net.dequantize(x), w, b, transB=1)
    net.output(net.qdq(y, zero=111))
    cases.add(f"block_classifier_{batch}", net, ["QLinearConv", "QLinearGlobalAveragePool", "QGemm"])


def flattened():
    """Convolution, then Flatten and Gemm: the order of channels and pixels matters."""
    net = Net()
    x = conv(net, stem(net, 3, size=6), (5, 3, 3, 3))
    x = net.quantize(net.op("Flatten", net.dequantize(x)), like=x)
    w, scale = net.weight(cases.f32(7, 80), 0)
    b = net.bias(cases.f32(7), (x.numbers[0] * scale).astype(np.float32))
    net.output(net.qdq(net.op("Gemm", net.dequantize(x), w, b, transB=1), zero=111))
    cases.add("block_flattened", net, ["QLinearConv", "QGemm"])


def detector():
    """A head as detectors have it: two maps, transposed, reshaped and joined."""
    net = Net()
    x = conv(net, stem(net, 3), (8, 3, 3, 3), **SAME)
    small = conv(net, x, (8, 8, 3, 3), strides=[2, 2], **SAME)
    parts = []
    for feature in (x, small):
        head = conv(net, feature, (6, 8, 3, 3), zero=119, relu=False, **SAME)
        moved = net.quantize(net.op("Transpose", net.dequantize(head), perm=[0, 2, 3, 1]), like=head)
        flat = net.quantize(net.op("Reshape", net.dequantize(moved), np.array([1, -1, 2], np.int64)), like=moved)
        parts.append(net.dequantize(flat))
    net.output(net.op("Softmax", net.op("Concat", *parts, axis=1), axis=-1))
    cases.add("block_detector", net, "QLinearConv")


def pyramid():
    """A map from above, resized and added."""
    net = Net()
    x = conv(net, stem(net, 3), (8, 3, 3, 3), **SAME)
    small = conv(net, x, (8, 8, 3, 3), strides=[2, 2], **SAME)
    how = dict(mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    large = net.op("Resize", net.dequantize(small), "", np.array([1, 1, 2, 2], np.float32), **how)
    large = net.quantize(large, like=small)
    total = net.quantize(net.op("Add", net.dequantize(x), net.dequantize(large)), zero=0)
    net.output(net.dequantize(conv(net, total, (4, 8, 1, 1))))
    cases.add("block_pyramid", net, ["QLinearConv", "QLinearAdd"])


def in_and_out():
    """Floats in the middle: quantised, then not, then quantised again."""
    net = Net()
    x = conv(net, stem(net, 3), (8, 3, 3, 3), **SAME)
    mid = net.op("Conv", net.op("Tanh", net.dequantize(x)), cases.f32(8, 8, 3, 3, scale=0.3), cases.f32(8), **SAME)
    y = conv(net, net.quantize(net.op("Relu", mid), zero=0), (4, 8, 1, 1))
    net.output(net.dequantize(y))
    why = "a convolution in floats comes before, which rounds as its sums are ordered"
    cases.add("block_floats_between", net, "QLinearConv", steps=1, why=why)


def float_weight():
    """A layer whose activations are quantised and whose weights were left alone."""
    net = Net()
    x = conv(net, stem(net, 3), (8, 3, 3, 3), **SAME)
    mid = net.op("Conv", net.dequantize(x), cases.f32(8, 8, 3, 3, scale=0.3), cases.f32(8), **SAME)
    net.output(net.qdq(mid, zero=120))
    why = "a convolution in floats rounds as its sums are ordered"
    cases.add("block_float_weight", net, "QLinearConv", steps=1, why=why, literal=True)


for batch in (1, 3):
    residual(batch)
    fire(batch)
    inverted(batch, True)
    inverted(batch, False)
    classifier(batch)
downsampled()
squeeze_excite()
flattened()
detector()
pyramid()
in_and_out()
float_weight()
