"""Quantised convolutions: every window, every way of quantising around one."""

import numpy as np
from processor import SATURATES

from .net import Cases, Net

cases = Cases(101)
FLOAT = "ONNX Runtime computes it in floats"


def conv(
    name,
    data,
    weight,
    bias="int32",
    axis=0,
    signed=False,
    zeros=(117, 120),
    kind=np.int8,
    weight_zero=0,
    after=(),
    quantised=True,
    dynamic=False,
    fused="QLinearConv",
    steps=0,
    why="",
    **attributes,
):
    """Conv between Q and DQ. Shapes are given; `after` are operators before the last QuantizeLinear."""
    net = Net()
    x = net.quantize(net.input(cases.f32(*data), dynamic=dynamic), zero=zeros[0], signed=signed)
    w, scale = net.weight(cases.f32(*weight, scale=0.3), axis, kind=kind, zero=weight_zero)
    inputs = [net.dequantize(x), w]
    if bias == "int32":
        inputs.append(net.bias(cases.f32(weight[0]), (x.numbers[0] * scale).astype(np.float32)))
    elif bias == "float":
        inputs.append(net.const(cases.f32(weight[0]), "bias"))
    y = net.op("Conv", *inputs, **attributes)
    for op, *rest in after:
        y = net.op(op, y, *rest)
    net.output(net.qdq(y, zero=zeros[1], signed=signed) if quantised else y)
    cases.add(f"conv_{name}", net, fused, steps=steps, why=why)


conv("1x1", (1, 8, 5, 7), (6, 8, 1, 1))
conv("1x1_stride", (1, 8, 5, 7), (6, 8, 1, 1), strides=[2, 2])
conv("1x1_pads", (1, 5, 4, 4), (6, 5, 1, 1), pads=[1, 0, 2, 1])
conv("1x1_many", (1, 70, 3, 3), (67, 70, 1, 1))
conv("3x3", (1, 3, 9, 8), (5, 3, 3, 3), pads=[1, 1, 1, 1])
conv("3x3_wide", (1, 16, 6, 6), (130, 16, 3, 3), pads=[1, 1, 1, 1])
conv("3x3_deep", (1, 70, 5, 5), (9, 70, 3, 3), pads=[1, 1, 1, 1])
conv("3x3_batch", (3, 4, 7, 5), (8, 4, 3, 3), pads=[1, 1, 1, 1])
conv("3x3_open_batch", (3, 4, 7, 5), (8, 4, 3, 3), pads=[1, 1, 1, 1], dynamic=True)
conv("3x3_stride", (1, 3, 9, 8), (5, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1])
conv("3x3_uneven_strides", (1, 3, 9, 11), (5, 3, 3, 3), strides=[2, 3])
conv("3x3_valid", (2, 6, 6, 6), (7, 6, 3, 3))
conv("3x3_dilated", (1, 4, 9, 10), (5, 4, 3, 3), dilations=[2, 3], pads=[2, 3, 2, 3])
conv("3x3_dilated_stride", (1, 4, 11, 10), (5, 4, 3, 3), dilations=[2, 1], strides=[2, 2], pads=[2, 0, 1, 1])
conv("3x3_asymmetric_pads", (1, 3, 7, 7), (4, 3, 3, 3), pads=[0, 1, 2, 3])
conv("3x3_pads_at_end", (1, 3, 8, 8), (4, 3, 3, 3), pads=[0, 0, 1, 1], strides=[2, 2])
conv("pads_beyond_kernel", (1, 3, 4, 4), (4, 3, 3, 3), pads=[4, 3, 4, 5])
conv("5x5", (1, 3, 9, 9), (4, 3, 5, 5), pads=[2, 2, 2, 2])
conv("7x7_stride", (1, 3, 16, 16), (8, 3, 7, 7), pads=[3, 3, 3, 3], strides=[2, 2])
conv("1x7", (1, 5, 6, 9), (4, 5, 1, 7), pads=[0, 3, 0, 3])
conv("7x1", (1, 5, 9, 6), (4, 5, 7, 1), pads=[3, 0, 3, 0])
conv("2x4", (1, 3, 6, 7), (5, 3, 2, 4), pads=[1, 2, 0, 1])
conv("kernel_is_input", (2, 3, 5, 6), (4, 3, 5, 6))
conv("one_pixel", (1, 4, 1, 1), (2, 4, 3, 3), pads=[1, 1, 1, 1])
conv("one_channel", (1, 1, 8, 8), (1, 1, 3, 3), pads=[1, 1, 1, 1])
conv("one_row", (1, 3, 1, 20), (5, 3, 1, 3), pads=[0, 1, 0, 1])
conv("same_upper", (1, 3, 8, 9), (4, 3, 3, 2), auto_pad="SAME_UPPER", strides=[2, 2])
conv("groups", (1, 8, 6, 6), (12, 4, 3, 3), group=2, pads=[1, 1, 1, 1])
conv("groups_of_one_output", (1, 6, 6, 6), (3, 2, 3, 3), group=3)
conv("groups_pointwise", (2, 8, 4, 4), (8, 2, 1, 1), group=4)
conv("1d", (2, 3, 17), (5, 3, 3), pads=[1, 1])
conv("1d_stride_dilation", (1, 4, 19), (6, 4, 3), strides=[2], dilations=[3], pads=[2, 0])
conv("1d_depthwise", (1, 6, 15), (6, 1, 3), group=6, pads=[1, 1])

for channels in (1, 3, 16, 35):
    conv(f"depthwise_{channels}", (1, channels, 7, 6), (channels, 1, 3, 3), group=channels, pads=[1, 1, 1, 1])
conv("depthwise_batch", (3, 8, 6, 6), (8, 1, 3, 3), group=8, pads=[1, 1, 1, 1])
conv("depthwise_stride", (1, 20, 9, 8), (20, 1, 3, 3), group=20, pads=[1, 1, 1, 1], strides=[2, 2])
conv("depthwise_5x5", (1, 17, 9, 9), (17, 1, 5, 5), group=17, pads=[2, 2, 2, 2])
conv("depthwise_dilated", (1, 9, 9, 9), (9, 1, 3, 3), group=9, dilations=[2, 2], pads=[2, 2, 2, 2])
conv("depthwise_asymmetric", (1, 9, 6, 7), (9, 1, 3, 3), group=9, pads=[2, 0, 1, 1])
conv("depthwise_multiplier", (1, 5, 7, 7), (15, 1, 3, 3), group=5, pads=[1, 1, 1, 1])
conv("depthwise_per_tensor", (1, 16, 7, 7), (16, 1, 3, 3), group=16, axis=None)

PLAIN = dict(data=(1, 5, 7, 6), weight=(9, 5, 3, 3), pads=[1, 1, 1, 1])
for signed, zeros in ((False, (0, 117, 255)), (True, (-128, 0, 5, 127))):
    for a in zeros:
        for b in zeros:
            conv(f"zeros_{'s8' if signed else 'u8'}_{a}_{b}".replace("-", "m"), **PLAIN, signed=signed, zeros=(a, b))
conv("per_tensor", **PLAIN, axis=None)
conv("no_bias", **PLAIN, bias=None)
conv("float_bias", **PLAIN, bias="float")
conv("float_bias_per_tensor", **PLAIN, bias="float", axis=None)
conv("s8_per_tensor", **PLAIN, signed=True, zeros=(3, -4), axis=None)
conv("u8_weight", **PLAIN, axis=None, kind=np.uint8, weight_zero=128)
conv("u8_weight_uneven", **PLAIN, axis=None, kind=np.uint8, weight_zero=100)
conv("u8_weight_per_channel", **PLAIN, kind=np.uint8, weight_zero=128)
conv(
    "u8_weight_depthwise",
    (1, 16, 6, 6),
    (16, 1, 3, 3),
    group=16,
    axis=None,
    kind=np.uint8,
    weight_zero=131,
    pads=[1, 1, 1, 1],
)
conv("s8_weight_with_zero", **PLAIN, axis=None, weight_zero=7)

SIX = [np.float32(0), np.float32(6)]
conv("relu", **PLAIN, after=[("Relu",)], zeros=(117, 0))
conv("relu_s8", **PLAIN, after=[("Relu",)], zeros=(0, -128), signed=True)
conv("relu6", **PLAIN, after=[("Clip", *SIX)], zeros=(117, 0))
conv("relu_depthwise", (1, 16, 6, 6), (16, 1, 3, 3), group=16, after=[("Relu",)], zeros=(0, 0), pads=[1, 1, 1, 1])
conv("relu6_depthwise", (1, 16, 6, 6), (16, 1, 3, 3), group=16, after=[("Clip", *SIX)], zeros=(0, 0), pads=[1, 1, 1, 1])
# Its zero point isn't the lowest number, so that only our executor sees that Relu is a lower bound.
conv("relu_zero_117", **PLAIN, after=[("Relu",)], fused=(), steps=1, why=FLOAT)
conv("clip_inner", **PLAIN, after=[("Clip", np.float32(-0.5), np.float32(1))], fused=(), steps=1, why=FLOAT)
conv("leaky", **PLAIN, after=[("LeakyRelu",)], fused=(), steps=1, why=FLOAT)
conv("float_output", **PLAIN, quantised=False, fused=())
conv("float_output_relu", **PLAIN, quantised=False, after=[("Relu",)], fused=())
conv("float_output_depthwise", (1, 16, 6, 6), (16, 1, 3, 3), group=16, quantised=False, fused=())
conv("float_output_no_bias", **PLAIN, quantised=False, bias=None, axis=None, fused=())


def infinite_scale(name, data, weight, **attributes):
    """An output scale so small that sums are multiplied by infinity; some are 0, of which NaN and then 0 becomes."""
    net = Net()
    x = net.quantize(net.input(cases.f32(*data)))
    values = cases.f32(*weight, scale=0.3)
    values[::2] = 0
    w, _ = net.weight(values)
    y = net.op("Conv", net.dequantize(x), w, **attributes)
    net.quantize(y, zero=120, scale=1e-44)
    cases.add(f"conv_infinite_scale_{name}", net, "QLinearConv", floats_differ=True)


infinite_scale("dense", (1, 5, 7, 6), (9, 5, 3, 3))
infinite_scale("depthwise", (1, 70, 7, 6), (70, 1, 3, 3), group=70)


def own_format():
    """QLinearConv as the file has it."""
    for name, signed, axis, bias, data, weight, rest in (
        ("plain", False, 0, True, (1, 5, 7, 6), (9, 5, 3, 3), {"pads": [1, 1, 1, 1]}),
        ("no_bias", False, None, False, (2, 5, 7, 6), (9, 5, 3, 3), {"strides": [2, 1]}),
        ("s8", True, None, True, (1, 5, 7, 6), (9, 5, 3, 3), {}),
        ("depthwise", False, 0, True, (1, 16, 7, 6), (16, 1, 3, 3), {"group": 16, "pads": [1, 1, 1, 1]}),
        ("1x1", False, 0, True, (1, 12, 4, 4), (7, 12, 1, 1), {}),
    ):
        if signed and SATURATES:
            continue
        net = Net()
        x = net.quantize(net.input(cases.f32(*data)), zero=3 if signed else 117, signed=signed)
        w = net.quantised_weight(cases.f32(*weight, scale=0.3), axis)
        y_scale, y_zero = net.const(np.float32(0.05)), net.const(np.int8(-9) if signed else np.uint8(99))
        extra = [net.whole_bias(cases.f32(weight[0]), x.numbers[0] * w.numbers[0])[0]] if bias else []
        y = net.op("QLinearConv", *x.inputs, *w.inputs, y_scale, y_zero, *extra, **rest)
        net.output(y)
        net.output(net.op("DequantizeLinear", y, y_scale, y_zero))
        cases.add(f"qlinearconv_{name}", net, "QLinearConv")


own_format()
