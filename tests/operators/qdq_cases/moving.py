"""Quantised pooling, and operators that only move elements."""

import numpy as np

from .net import Cases, Net

cases = Cases(104)


def between(name, build, shape=(1, 5, 8, 7), zeros=(117, 100), signed=False, like=False, dynamic=False, **rest):
    """`build` makes one value, or several, of a dequantised one; each is quantised."""
    net = Net()
    q = net.quantize(net.input(cases.f32(*shape), dynamic=dynamic), zero=zeros[0], signed=signed)
    made = build(net, net.dequantize(q))
    for y in [made] if isinstance(made, str) else made:
        net.output(net.dequantize(net.quantize(y, zero=zeros[1], signed=signed, like=q if like else None)))
    cases.add(name, net, **rest)


def op(kind, *inputs, outputs=1, **attributes):
    """A builder of a single operator."""
    return lambda net, x: net.op(kind, x, *inputs, outputs=outputs, **attributes)


WINDOWS = {
    "2x2": dict(kernel_shape=[2, 2], strides=[2, 2]),
    "3x3": dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "3x3_overlap": dict(kernel_shape=[3, 3]),
    "asymmetric": dict(kernel_shape=[3, 2], strides=[1, 2], pads=[0, 1, 2, 0]),
    "ceil": dict(kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    "1x3": dict(kernel_shape=[1, 3], pads=[0, 1, 0, 1]),
}
for window, how in WINDOWS.items():
    between(f"max_pool_{window}", op("MaxPool", **how), like=True, fused="MaxPool")
    if window != "ceil":
        between(f"average_pool_{window}", op("AveragePool", **how), fused="QLinearAveragePool")
        between(f"average_pool_{window}_like", op("AveragePool", **how), like=True, fused="QLinearAveragePool")
    if "pads" in how:
        between(f"average_pool_{window}_all", op("AveragePool", **how, count_include_pad=1), fused="QLinearAveragePool")
between("average_pool_ceil", op("AveragePool", **WINDOWS["ceil"]), fused="QLinearAveragePool")
between("max_pool_s8", op("MaxPool", **WINDOWS["3x3"]), zeros=(-3, 9), signed=True, like=True, fused="MaxPool")
between("max_pool_rescaled", op("MaxPool", **WINDOWS["3x3"]))
between("max_pool_dilated", op("MaxPool", kernel_shape=[2, 3], dilations=[2, 2]), like=True)
between("max_pool_batch", op("MaxPool", **WINDOWS["2x2"]), (3, 33, 6, 6), like=True, dynamic=True)
between("max_pool_1d", op("MaxPool", kernel_shape=[3], strides=[2]), (2, 5, 13), like=True)
between("average_pool_s8", op("AveragePool", **WINDOWS["3x3"]), zeros=(-3, 9), signed=True, fused="QLinearAveragePool")
between("average_pool_zero_0", op("AveragePool", **WINDOWS["3x3"]), zeros=(0, 0), fused="QLinearAveragePool")
between("average_pool_zero_255", op("AveragePool", **WINDOWS["3x3"]), zeros=(255, 255), fused="QLinearAveragePool")
between("average_pool_batch", op("AveragePool", **WINDOWS["2x2"]), (3, 33, 6, 6), fused="QLinearAveragePool")
between("average_pool_whole", op("AveragePool", kernel_shape=[8, 7]), fused="QLinearAveragePool")
GLOBAL = dict(fused="QLinearGlobalAveragePool")
between("global_average", op("GlobalAveragePool"), **GLOBAL)
between("global_average_batch", op("GlobalAveragePool"), (3, 33, 4, 5), dynamic=True, **GLOBAL)
between("global_average_large", op("GlobalAveragePool"), (1, 3, 40, 41), **GLOBAL)
between("global_average_like", op("GlobalAveragePool"), like=True, **GLOBAL)
between("global_average_s8", op("GlobalAveragePool"), zeros=(-3, 9), signed=True, **GLOBAL)
between("global_average_zero_0", op("GlobalAveragePool"), zeros=(0, 0), **GLOBAL)
MEAN = op("ReduceMean", axes=[2, 3], keepdims=1)
for name, shape in {"8x7": (2, 61, 8, 7), "5x2": (1, 61, 5, 2), "7x7": (2, 70, 7, 7), "1x3": (1, 9, 1, 3)}.items():
    # Of one scale, many means lie in the middle between two codes.
    between(f"reduce_mean_{name}", MEAN, shape, like=True, same_order=True)
between("reduce_mean", MEAN, same_order=True)
between("reduce_mean_s8", MEAN, zeros=(-3, 9), signed=True, same_order=True)
between("reduce_mean_flat", op("ReduceMean", axes=[2, 3], keepdims=0), like=True, dynamic=True, same_order=True)
between("global_max", op("GlobalMaxPool"))


def i64(*values):
    """Axes and shapes."""
    return np.array(values, np.int64)


MOVES = {
    "reshape": op("Reshape", i64(1, -1)),
    "reshape_back": op("Reshape", i64(1, 7, 5, 8)),
    "flatten": op("Flatten", axis=1),
    "transpose": op("Transpose", perm=[0, 2, 3, 1]),
    "transpose_swap": op("Transpose", perm=[0, 1, 3, 2]),
    "squeeze": op("Squeeze", i64(0)),
    "unsqueeze": op("Unsqueeze", i64(0, 5)),
    "slice": op("Slice", i64(1, 2), i64(4, 7), i64(1, 2)),
    "slice_step": op("Slice", i64(0, 7), i64(5, -9), i64(1, 2), i64(2, -2)),
    "slice_step_each": op("Slice", i64(0, 6, 0), i64(5, -8, 8), i64(1, 3, 2), i64(3, -2, 3)),
    "split": op("Split", i64(2, 3), outputs=2, axis=1),
    "split_columns": op("Split", i64(3, 3, 1), outputs=3, axis=3),
    "resize_nearest": op(
        "Resize", "", np.array([1, 1, 2, 2], np.float32), mode="nearest", coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    ),
    "gather": op("Gather", i64(4, 0, 2), axis=1),
    "pad": op("Pad", i64(0, 0, 1, 2, 0, 0, 0, 1)),
    "expand": lambda net, x: net.op("Expand", net.op("Slice", x, i64(0), i64(1), i64(1)), i64(1, 5, 8, 7)),
    "depth_to_space": lambda net, x: net.op("DepthToSpace", net.op("Slice", x, i64(0), i64(4), i64(1)), blocksize=2),
}  # fmt: skip
for name, build in MOVES.items():
    between(f"move_{name}", build, like=True)
    between(f"move_{name}_rescaled", build)
    between(f"move_{name}_s8", build, like=True, zeros=(-9, 0), signed=True)


def concat(
    name, scales, axis=1, shapes=None, read=False, zeros=(117, 90, 100), signed=False, like=False, constant=False
):
    """Concat of quantised values; with `read` others read the first of them, too."""
    net = Net()
    shapes = shapes or [(1, c, 4, 5) for c in (3, 8, 5)][: len(scales)]
    parts = []
    for i, (s, shape) in enumerate(zip(scales, shapes)):
        how = dict(like=parts[0]) if like and parts else dict(zero=zeros[i], signed=signed)
        x = net.const(cases.f32(*shape, scale=s)) if constant and i else net.input(cases.f32(*shape, scale=s), f"x{i}")
        parts.append(net.quantize(x, **how))
    y = net.op("Concat", *(net.dequantize(p) for p in parts), axis=axis)
    q = net.quantize(y, like=parts[0]) if like else net.quantize(y, zero=110 if not signed else 3, signed=signed)
    net.output(net.dequantize(q))
    if read:
        first = net.dequantize(parts[0])
        net.output(net.qdq(net.op("Add", first, first), zero=99, signed=signed))
    cases.add(f"concat_{name}", net)


concat("two", (1, 1))
concat("three", (1, 3, 0.2))
concat("equal", (1, 1, 1), like=True)
concat("equal_read", (1, 1, 1), like=True, read=True)
concat("read", (1, 2, 0.5), read=True)
concat("s8", (1, 2), signed=True, zeros=(0, 5))
concat("last_axis", (1, 2), axis=3, shapes=[(1, 3, 4, 5), (1, 3, 4, 2)])
concat("batch_axis", (1, 2), axis=0, shapes=[(1, 3, 4, 5), (2, 3, 4, 5)])
concat("batches", (1, 2), shapes=[(3, 3, 4, 5), (3, 17, 4, 5)])
concat("2d", (1, 2), shapes=[(3, 5), (3, 8)])
concat("constant", (1, 2), constant=True)


def taken(name, shape, at, axis, known, dtype=np.int64):
    """Elements by positions that are known, or come from elsewhere; some count from behind."""
    net = Net()
    dynamic = shape[0] == at[0]
    x = net.input(cases.f32(*shape), dynamic=dynamic)
    n = shape[axis]
    where = (np.arange(np.prod(at)).reshape(at) * 7 % (2 * n) - n).astype(dtype)
    where = where if known else net.input(where, "places", dynamic=dynamic)
    net.output(net.op("GatherElements", net.op("Mul", x, np.float32(2)), where, axis=axis))
    cases.add(f"take_{name}", net)


for known in (False, True):
    how = "known" if known else "given"
    taken(f"{how}_last", (2, 3, 7), (2, 3, 5), -1, known)
    taken(f"{how}_more", (4, 3, 4, 6), (4, 3, 4, 9), 3, known)
    taken(f"{how}_narrow", (3, 6), (3, 6), 1, known, np.int32)
    taken(f"{how}_few_rows", (4, 6), (2, 6), 1, known)
    taken(f"{how}_first", (6, 4), (3, 4), 0, known)
