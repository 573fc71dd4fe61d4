"""Quantised arithmetic on single elements, and quantising itself."""

import numpy as np

from .net import Cases, Net

cases = Cases(103)


def binary(op, name, left, right, zeros=(117, 90, 130), signed=False, constant=False, scales=(1.0, 1.0), **rest):
    """Add or Mul of two quantised values of different scales."""
    net = Net()
    a = net.qdq(net.input(cases.f32(*left, scale=scales[0]), "a"), zero=zeros[0], signed=signed)
    value = cases.f32(*right, scale=scales[1])
    b = net.qdq(net.const(value) if constant else net.input(value, "b"), zero=zeros[1], signed=signed)
    y = net.op(op, *((b, a) if rest.pop("swapped", False) else (a, b)))
    if rest.pop("relu", False):
        y = net.op("Relu", y)
    net.output(net.qdq(y, zero=zeros[2], signed=signed))
    cases.add(f"{op.lower()}_{name}", net, **{"fused": f"QLinear{op}"} | rest)


SHAPE = (1, 5, 6, 7)
for op in ("Add", "Mul"):
    binary(op, "same_shape", SHAPE, SHAPE)
    binary(op, "batch", (3, 17, 4, 4), (3, 17, 4, 4))
    binary(op, "scales", SHAPE, SHAPE, scales=(1, 9))
    binary(op, "scales_reversed", SHAPE, SHAPE, scales=(9, 0.3))
    binary(op, "channels", SHAPE, (1, 5, 1, 1), constant=True)
    binary(op, "channels_open", SHAPE, (1, 5, 1, 1))
    binary(op, "channels_first", SHAPE, (5, 1, 1), swapped=True)
    binary(op, "pixels", SHAPE, (1, 1, 6, 7))
    binary(op, "columns", SHAPE, (7,))
    binary(op, "scalar", SHAPE, (), constant=True)
    binary(op, "one_element", SHAPE, (1,), constant=True)
    binary(op, "both_sides", (2, 1, 6, 1), (1, 5, 1, 7))
    binary(op, "2d", (4, 33), (4, 33))
    binary(op, "2d_vector", (4, 33), (33,), constant=True)
    binary(op, "zeros_low", SHAPE, SHAPE, zeros=(0, 0, 0))
    binary(op, "zeros_high", SHAPE, SHAPE, zeros=(255, 255, 0 if op == "Mul" else 255))
    binary(op, "s8", SHAPE, SHAPE, zeros=(0, -5, 7), signed=True)
    binary(op, "s8_channels", SHAPE, (5, 1, 1), zeros=(-128, 127, 0), signed=True)
    binary(op, "relu", SHAPE, SHAPE, zeros=(117, 90, 0), relu=True)
binary("Sub", "same_shape", SHAPE, SHAPE, fused=(), steps=1, why="ONNX Runtime computes it in floats")


def with_itself():
    """Both operands are one value."""
    for op in ("Add", "Mul"):
        net = Net()
        x = net.quantize(net.input(cases.f32(*SHAPE)))
        net.output(net.qdq(net.op(op, net.dequantize(x), net.dequantize(x)), zero=100))
        cases.add(f"{op.lower()}_with_itself", net, f"QLinear{op}")


def unary(
    name, op, zeros=(117, 60), signed=False, shape=SHAPE, fused=(), steps=0, why="", scale=2.0, like=False, **attributes
):
    """One operator between DQ and Q."""
    net = Net()
    q = net.quantize(net.input(cases.f32(*shape, scale=scale)), zero=zeros[0], signed=signed)
    made = net.op(op, net.dequantize(q), **attributes)
    net.output(net.dequantize(net.quantize(made, zero=zeros[1], signed=signed, like=q if like else None)))
    cases.add(f"unary_{name}", net, fused, steps=steps, why=why)


ONE = {"steps": 1, "why": "a function that is only approximated, before it is rounded"}
unary("relu", "Relu")
unary("relu_zero_0", "Relu", zeros=(117, 0))
unary("relu_same_scale", "Relu", like=True)
unary("relu_s8", "Relu", zeros=(3, -128), signed=True)
unary("leaky", "LeakyRelu", alpha=0.1, fused=["QLinearLeakyRelu"])
unary("leaky_s8", "LeakyRelu", alpha=0.2, zeros=(3, -8), signed=True, fused=["QLinearLeakyRelu"])
unary("sigmoid", "Sigmoid", zeros=(117, 0), fused=["QLinearSigmoid"], **ONE)
unary("sigmoid_s8", "Sigmoid", zeros=(3, -128), signed=True, fused=["QLinearSigmoid"], **ONE)
unary("tanh", "Tanh", **ONE)
unary("hard_swish", "HardSwish", **ONE)
unary("hard_sigmoid", "HardSigmoid", zeros=(117, 0), **ONE)
unary("abs", "Abs", zeros=(117, 0))
unary("neg", "Neg")
unary("exp", "Exp", zeros=(117, 0), **ONE)
unary("softmax_last", "Softmax", zeros=(117, 0), axis=-1, fused=["QLinearSoftmax"], **ONE)
unary("softmax_2d", "Softmax", zeros=(117, 0), shape=(3, 21), axis=1, fused=["QLinearSoftmax"], **ONE)
unary("softmax_channels", "Softmax", zeros=(117, 0), axis=1, fused=["QLinearSoftmax"], **ONE)


def clips():
    """Bounds on either side of what can be represented."""
    for name, low, high, zero in (
        ("relu6", 0, 6, 0),
        ("relu6_zero_117", 0, 6, 117),
        ("both", -1, 1.5, 117),
        ("idle", -99, 99, 117),
    ):
        net = Net()
        x = net.qdq(net.input(cases.f32(*SHAPE, scale=3)))
        net.output(net.qdq(net.op("Clip", x, np.float32(low), np.float32(high)), zero=zero, scale=0.031))
        cases.add(f"clip_{name}", net)


def swish():
    """x * sigmoid(x), as exporters write it."""
    net = Net()
    q = net.quantize(net.input(cases.f32(*SHAPE, scale=2)))
    s = net.qdq(net.op("Sigmoid", net.dequantize(q)), zero=0)
    net.output(net.qdq(net.op("Mul", net.dequantize(q), s), zero=20))
    cases.add("swish", net, ["QLinearSigmoid", "QLinearMul"], **ONE)


def quantising():
    """QuantizeLinear and DequantizeLinear alone."""
    halves = np.arange(-300, 300, dtype=np.float32).reshape(1, 6, 10, 10) / 2
    specials = np.array([np.inf, -np.inf, 1e30, -1e30, 0, -0.0, 1e-30, 254.5, 255.5, 127.5, 128.5, -128.5], np.float32)
    for signed, zeros in ((False, (0, 1, 117, 128, 255)), (True, (-128, -1, 0, 127))):
        for zero in zeros:
            for name, value, scale in (
                ("halves", halves, 1),
                ("specials", specials, 1),
                ("thirds", cases.f32(1, 7, 5, 3, scale=3), 0.0333),
                ("reciprocal", halves * np.float32(0.1), 0.1),
            ):
                net = Net()
                net.output(net.qdq(net.input(value), zero=zero, scale=scale, signed=signed, expose=True))
                cases.add(f"quantize_{name}_{'s8' if signed else 'u8'}_{zero}".replace("-", "m"), net)
    everything = np.arange(256)
    for name, value, zero in (("u8", everything.astype(np.uint8), 117), ("s8", (everything - 128).astype(np.int8), -7)):
        net = Net()
        x = net.input(value.reshape(1, 4, 8, 8))
        net.output(net.op("DequantizeLinear", x, np.float32(0.0371), value.dtype.type(zero)))
        cases.add(f"dequantize_{name}", net)
    net = Net()
    first = net.qdq(net.input(cases.f32(*SHAPE)), zero=117)
    net.output(net.qdq(first, zero=31, scale=0.05))
    cases.add("requantize", net)
    net = Net()
    first = net.qdq(net.input(cases.f32(*SHAPE)), zero=117)
    net.output(net.qdq(first, zero=-11, signed=True, scale=0.03, expose=True))
    cases.add("requantize_u8_to_s8", net)


with_itself()
clips()
swish()
quantising()
