"""The same operators in floats: what the executor's own float kernels are for."""

import numpy as np

from .net import Cases, Net

cases = Cases(106)


def single(name, kind, *inputs, outputs=1, dynamic=False, opset=17, **attributes):
    """One operator on an input and constants."""
    net = Net(opset)
    made = net.op(kind, net.input(inputs[0], dynamic=dynamic), *inputs[1:], outputs=outputs, **attributes)
    for y in [made] if outputs == 1 else made:
        net.output(y)
    cases.add(f"f32_{name}", net)


def conv(name, data, weight, bias=True, after=(), dynamic=False, **attributes):
    """Conv, perhaps followed by others."""
    net = Net()
    extra = [cases.f32(weight[0])] if bias else []
    y = net.op(
        "Conv", net.input(cases.f32(*data), dynamic=dynamic), cases.f32(*weight, scale=0.3), *extra, **attributes
    )
    for op, *rest in after:
        y = net.op(op, y, *rest)
    net.output(y)
    cases.add(f"f32_conv_{name}", net)


SAME = dict(pads=[1, 1, 1, 1])
conv("1x1", (1, 8, 5, 7), (6, 8, 1, 1))
conv("1x1_stride", (1, 8, 5, 7), (6, 8, 1, 1), strides=[2, 2])
conv("1x1_many", (1, 70, 3, 3), (67, 70, 1, 1))
conv("3x3", (1, 3, 9, 8), (5, 3, 3, 3), **SAME)
conv("3x3_wide", (1, 16, 6, 6), (130, 16, 3, 3), **SAME)
conv("3x3_batch", (3, 4, 7, 5), (8, 4, 3, 3), dynamic=True, **SAME)
conv("3x3_stride", (1, 3, 9, 8), (5, 3, 3, 3), strides=[2, 2], **SAME)
conv("3x3_dilated", (1, 4, 11, 10), (5, 4, 3, 3), dilations=[2, 3], strides=[1, 2], pads=[2, 0, 1, 1])
conv("3x3_asymmetric_pads", (1, 3, 7, 7), (4, 3, 3, 3), bias=False, pads=[0, 1, 2, 3])
conv("5x5", (1, 3, 9, 9), (4, 3, 5, 5), pads=[2, 2, 2, 2])
conv("1x7", (1, 5, 6, 9), (4, 5, 1, 7), pads=[0, 3, 0, 3])
conv("7x7_stride", (1, 3, 16, 16), (8, 3, 7, 7), pads=[3, 3, 3, 3], strides=[2, 2])
conv("groups", (1, 8, 6, 6), (12, 4, 3, 3), group=2, **SAME)
conv("depthwise", (1, 35, 7, 6), (35, 1, 3, 3), group=35, **SAME)
conv("depthwise_stride", (2, 20, 9, 8), (20, 1, 3, 3), group=20, strides=[2, 2], **SAME)
conv("depthwise_5x5", (1, 17, 9, 9), (17, 1, 5, 5), group=17, pads=[2, 2, 2, 2])
conv("depthwise_multiplier", (1, 5, 7, 7), (15, 1, 3, 3), group=5, **SAME)
conv("1d", (2, 3, 17), (5, 3, 3), pads=[1, 1])
conv("1d_dilated", (1, 4, 19), (6, 4, 3), strides=[2], dilations=[3], pads=[2, 0])
conv("one_pixel", (1, 4, 1, 1), (2, 4, 3, 3), **SAME)
conv("relu", (1, 5, 7, 6), (9, 5, 3, 3), after=[("Relu",)], **SAME)
conv("relu6", (1, 5, 7, 6), (9, 5, 3, 3), after=[("Clip", np.float32(0), np.float32(6))], **SAME)
conv("leaky", (1, 5, 7, 6), (9, 5, 3, 3), after=[("LeakyRelu",)], **SAME)
conv("sigmoid", (1, 5, 7, 6), (9, 5, 3, 3), after=[("Sigmoid",)], **SAME)
conv("add_constant", (1, 5, 7, 6), (9, 5, 3, 3), after=[("Add", cases.f32(9, 1, 1)), ("Relu",)], **SAME)

for trans in (0, 1):
    shape = (7, 20) if trans else (20, 7)
    single(f"gemm_{trans}", "Gemm", cases.f32(3, 20), cases.f32(*shape), cases.f32(7), transB=trans)
    single(f"gemm_{trans}_no_bias", "Gemm", cases.f32(1, 20), cases.f32(*shape), transB=trans)
    single(
        f"gemm_{trans}_alpha",
        "Gemm",
        cases.f32(3, 20),
        cases.f32(*shape),
        cases.f32(7),
        transB=trans,
        alpha=0.5,
        beta=2.0,
    )
single("gemm_many", "Gemm", cases.f32(5, 130), cases.f32(70, 130), cases.f32(70), transB=1, dynamic=True)
single("gemm_transposed_input", "Gemm", cases.f32(20, 3), cases.f32(20, 7), cases.f32(7), transA=1)
single("matmul_2d", "MatMul", cases.f32(3, 20), cases.f32(20, 7))
single("matmul_3d", "MatMul", cases.f32(2, 5, 20), cases.f32(20, 7), dynamic=True)
single("matmul_row", "MatMul", cases.f32(1, 200), cases.f32(200, 65))


def product(name, left, right, turned=(None, None), dynamic=False):
    """MatMul of two activations, each perhaps behind a Transpose."""
    net = Net()
    a, b = net.input(cases.f32(*left), "a", dynamic=dynamic), net.input(cases.f32(*right), "b", dynamic=dynamic)
    a, b = (x if perm is None else net.op("Transpose", x, perm=perm) for x, perm in zip((a, b), turned))
    net.output(net.op("MatMul", a, b))
    cases.add(f"f32_matmul_of_activations_{name}", net)


product("2d", (3, 20), (20, 7))
product("row", (1, 20), (20, 1))
product("3d", (2, 5, 20), (2, 20, 7), dynamic=True)
product("4d", (2, 3, 5, 20), (2, 3, 20, 70))
product("wide", (3, 40, 70), (3, 70, 130), dynamic=True)
product("fewer_axes", (2, 3, 5, 8), (8, 7))
product("more_axes", (5, 8), (2, 3, 8, 7))
product("broadcast_left", (2, 1, 5, 8), (2, 3, 8, 7))
product("broadcast_right", (2, 3, 5, 8), (1, 3, 8, 7))
product("broadcast_both", (2, 1, 5, 8), (3, 8, 7))
product("heads", (2, 6, 4, 8), (2, 9, 4, 8), ([0, 2, 1, 3], [0, 2, 3, 1]), dynamic=True)
product("heads_values", (2, 4, 6, 9), (2, 9, 4, 8), (None, [0, 2, 1, 3]), dynamic=True)
product("turned", (3, 5, 8), (3, 7, 8), (None, [0, 2, 1]))
product("turned_left", (3, 8, 5), (3, 8, 7), ([0, 2, 1], None))
product("turned_batch", (5, 8, 3), (5, 3, 8, 2), ([2, 0, 1], [3, 1, 2, 0]))
product("turned_first", (4, 2, 8), (2, 8, 7), ([1, 0, 2], None))
product("turned_row", (4, 2, 1), (4, 2, 1), (None, [0, 2, 1]))

for kind in ("MaxPool", "AveragePool"):
    pool = {
        "2x2": dict(kernel_shape=[2, 2], strides=[2, 2]),
        "3x3": dict(kernel_shape=[3, 3], strides=[2, 2], **SAME),
        "asymmetric": dict(kernel_shape=[3, 2], strides=[1, 2], pads=[0, 1, 2, 0]),
        "ceil": dict(kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
        "ceil_pads": dict(kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, **SAME),
    }
    for name, how in pool.items():
        single(f"{kind.lower()}_{name}", kind, cases.f32(2, 5, 8, 7), **how)
single("averagepool_all", "AveragePool", cases.f32(1, 5, 8, 7), kernel_shape=[3, 3], count_include_pad=1, **SAME)
ALL = dict(count_include_pad=1, ceil_mode=1, opset=19)
single("averagepool_all_ceil", "AveragePool", cases.f32(1, 5, 8, 8), kernel_shape=[3, 3], strides=[2, 2], **ALL, **SAME)
single("maxpool_dilated", "MaxPool", cases.f32(1, 5, 8, 7), kernel_shape=[2, 3], dilations=[2, 2])
single("global_average", "GlobalAveragePool", cases.f32(3, 5, 8, 7), dynamic=True)
for keep in (0, 1):
    single(f"mean_of_rows_{keep}", "ReduceMean", cases.f32(3, 16, 20), axes=[1], keepdims=keep, dynamic=True)
    single(f"mean_of_pixels_{keep}", "ReduceMean", cases.f32(2, 4, 5, 33), axes=[1, 2], keepdims=keep)
    single(f"mean_of_images_{keep}", "ReduceMean", cases.f32(2, 9, 4, 5), axes=[-1, -2], keepdims=keep)
single("global_max", "GlobalMaxPool", cases.f32(1, 5, 8, 7))

for axis in range(-4, 4):
    single(f"softmax_{axis}".replace("-", "m"), "Softmax", cases.f32(2, 5, 6, 7, scale=3), axis=axis)
single("softmax_large", "Softmax", cases.f32(2, 50, scale=60), axis=-1)
single("log_softmax", "LogSoftmax", cases.f32(2, 50, scale=3), axis=-1)
single("layer_norm", "LayerNormalization", cases.f32(2, 5, 33), cases.f32(33), cases.f32(33), axis=-1)
single("layer_norm_no_bias", "LayerNormalization", cases.f32(2, 5, 33), cases.f32(33), axis=-1)
single("layer_norm_two_axes", "LayerNormalization", cases.f32(2, 5, 8), cases.f32(5, 8), cases.f32(5, 8), axis=1)

for kind in ("Add", "Sub", "Mul", "Div"):
    for name, other in {
        "channels": (1, 5, 1, 1), "pixels": (1, 1, 6, 7), "columns": (7,), "scalar": (), "rows": (6, 1), "same": (2, 5, 6, 7),
    }.items():  # fmt: skip
        single(f"{kind.lower()}_{name}", kind, cases.f32(2, 5, 6, 7), np.abs(cases.f32(*other)) + np.float32(0.5))
for kind in ("Relu", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "Erf", "Exp", "Abs", "Neg", "Floor", "Softplus"):
    single(f"unary_{kind.lower()}", kind, cases.f32(2, 5, 6, 7, scale=3))
single("unary_leaky", "LeakyRelu", cases.f32(2, 5, 6, 7), alpha=0.2)
single("unary_prelu", "PRelu", cases.f32(2, 5, 6, 7), cases.f32(5, 1, 1))
single("unary_gelu", "Gelu", cases.f32(2, 5, 6, 7), opset=20)
single("unary_gelu_tanh", "Gelu", cases.f32(2, 5, 6, 7), approximate="tanh", opset=20)


def i64(*values):
    """Axes and shapes."""
    return np.array(values, np.int64)


def chain(name, data, *steps, dynamic=False):
    """Operators one after the other."""
    net = Net()
    y = net.input(cases.f32(*data), dynamic=dynamic)
    for op, inputs, attributes in steps:
        y = net.op(op, y, *inputs, **attributes)
    net.output(y)
    cases.add(f"f32_{name}", net)


CONV = ("Conv", [cases.f32(6, 3, 3, 3, scale=0.4), cases.f32(6)], SAME)
FLOOR = dict(coordinate_transformation_mode="asymmetric", nearest_mode="floor")
TO_NHWC = ("Transpose", [], dict(perm=[0, 2, 3, 1]))
chain("conv_transpose_reshape", (1, 3, 5, 4), CONV, TO_NHWC, ("Reshape", [i64(1, -1, 2)], {}))
chain("conv_transpose_reshape_batch", (3, 3, 5, 4), CONV, TO_NHWC, ("Reshape", [i64(0, -1, 2)], {}), dynamic=True)
chain("transpose_conv", (1, 5, 4, 3), ("Transpose", [], dict(perm=[0, 3, 1, 2])), CONV)
chain(
    "conv_flatten_gemm",
    (2, 3, 5, 4),
    CONV,
    ("Flatten", [], {}),
    ("Gemm", [cases.f32(7, 120), cases.f32(7)], dict(transB=1)),
)
chain("conv_reshape_matmul", (2, 3, 5, 4), CONV, ("Reshape", [i64(2, 6, 20)], {}), ("MatMul", [cases.f32(20, 4)], {}))
chain(
    "conv_pool_conv",
    (2, 3, 8, 8),
    CONV,
    ("MaxPool", [], dict(kernel_shape=[2, 2], strides=[2, 2])),
    ("Conv", [cases.f32(4, 6, 1, 1)], {}),
    dynamic=True,
)
chain("conv_softmax", (1, 3, 5, 4), CONV, ("Softmax", [], dict(axis=1)))
chain("conv_slice", (1, 3, 5, 4), CONV, ("Slice", [i64(1, 0), i64(5, 4), i64(1, 2), i64(2, 1)], {}))
chain("conv_slice_step", (1, 3, 5, 8), CONV, ("Slice", [i64(0, 7), i64(6, -9), i64(1, 3), i64(2, -3)], {}))
chain("slice_step_batch", (3, 5, 8), ("Slice", [i64(-1), i64(-9), i64(2), i64(-2)], {}), dynamic=True)
chain("slice_step_vector", (9,), ("Slice", [i64(1), i64(9), i64(0), i64(3)], {}))
chain("resize_columns", (2, 3, 5), ("Resize", ["", np.array([1, 1, 3], np.float32)], dict(mode="nearest", **FLOOR)))
chain("conv_squeeze", (1, 3, 5, 4), CONV, ("GlobalAveragePool", [], {}), ("Squeeze", [i64(2, 3)], {}))


def joined():
    """Concat of convolutions, one of which others read."""
    net = Net()
    x = net.input(cases.f32(2, 3, 6, 5), dynamic=True)
    a = net.op("Relu", net.op("Conv", x, cases.f32(6, 3, 1, 1), cases.f32(6)))
    b = net.op("Relu", net.op("Conv", x, cases.f32(9, 3, 3, 3), cases.f32(9), **SAME))
    both = net.op("Concat", a, b, axis=1)
    net.output(net.op("Conv", both, cases.f32(4, 15, 1, 1)))
    net.output(net.op("MaxPool", a, kernel_shape=[2, 2]))
    net.output(b)
    cases.add("f32_concat_read_by_others", net)


def residual():
    """Conv, Add of an earlier value, Relu."""
    net = Net()
    x = net.op("Relu", net.op("Conv", net.input(cases.f32(2, 3, 6, 5), dynamic=True), cases.f32(8, 3, 3, 3), **SAME))
    y = net.op("Conv", x, cases.f32(8, 8, 3, 3, scale=0.3), cases.f32(8), **SAME)
    net.output(net.op("Relu", net.op("Add", y, x)))
    cases.add("f32_residual", net)


def split():
    """Channels shuffled, as ShuffleNet does."""
    net = Net()
    x = net.op("Conv", net.input(cases.f32(1, 3, 6, 5)), cases.f32(8, 3, 1, 1))
    a, b = net.op("Split", x, i64(4, 4), outputs=2, axis=1)
    y = net.op("Concat", a, net.op("Conv", b, cases.f32(4, 4, 1, 1)), axis=1)
    y = net.op("Transpose", net.op("Reshape", y, i64(1, 2, 4, 6, 5)), perm=[0, 2, 1, 3, 4])
    net.output(net.op("Conv", net.op("Reshape", y, i64(1, 8, 6, 5)), cases.f32(3, 8, 1, 1)))
    cases.add("f32_shuffle", net)


joined()
residual()
split()
