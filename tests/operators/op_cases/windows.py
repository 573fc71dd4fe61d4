"""Convolution and pooling: everything that slides a window."""

import numpy as np

from .build import Cases, f32

cases = Cases()
rng = np.random.default_rng(1)


def conv(name, data, weight, bias=False, opset=17, **attributes):
    """A Conv of random data; shapes are given."""
    b = [f32(rng, weight[0])] if bias else []
    cases.op(name, "Conv", f32(rng, *data), f32(rng, *weight), *b, const=(1, 2), opset=opset, **attributes)


conv("plain", (1, 3, 8, 8), (4, 3, 3, 3))
conv("bias", (2, 3, 8, 8), (4, 3, 3, 3), bias=True)
conv("pads", (1, 3, 8, 8), (4, 3, 3, 3), bias=True, pads=[1, 1, 1, 1])
conv("pads_asymmetric", (1, 3, 8, 8), (4, 3, 3, 3), pads=[0, 1, 2, 3])
conv("pads_end_only", (1, 2, 7, 7), (3, 2, 3, 3), pads=[0, 0, 1, 1], strides=[2, 2])
conv("strides", (1, 3, 9, 8), (4, 3, 3, 3), strides=[2, 3])
conv("dilations", (1, 3, 11, 11), (4, 3, 3, 3), dilations=[2, 3])
conv("dilations_strides_pads", (1, 2, 11, 10), (3, 2, 3, 2), dilations=[2, 1], strides=[2, 1], pads=[2, 0, 1, 1])
conv("group", (1, 4, 8, 8), (6, 2, 3, 3), bias=True, group=2)
conv("depthwise", (2, 6, 8, 8), (6, 1, 3, 3), bias=True, group=6, pads=[1, 1, 1, 1])
conv("depthwise_stride", (1, 6, 9, 9), (6, 1, 3, 3), group=6, strides=[2, 2], pads=[1, 1, 1, 1])
conv("depthwise_multiplier", (1, 3, 8, 8), (9, 1, 3, 3), group=3)
conv("depthwise_5x5", (1, 4, 9, 9), (4, 1, 5, 5), group=4, pads=[2, 2, 2, 2])
conv("pointwise", (2, 8, 5, 5), (3, 8, 1, 1), bias=True)
conv("pointwise_stride", (1, 8, 5, 5), (3, 8, 1, 1), strides=[2, 2])
conv("oblong_kernel", (1, 3, 8, 10), (4, 3, 1, 5), pads=[0, 2, 0, 2])
conv("kernel_is_input", (3, 2, 5, 6), (4, 2, 5, 6), bias=True)
conv("even_kernel", (1, 3, 8, 8), (4, 3, 2, 4), pads=[1, 2, 0, 1])
conv("same_upper", (1, 3, 8, 8), (4, 3, 3, 3), auto_pad="SAME_UPPER")
conv("same_upper_stride", (1, 3, 8, 9), (4, 3, 3, 2), auto_pad="SAME_UPPER", strides=[2, 2])
conv("same_lower", (1, 3, 8, 8), (4, 3, 2, 2), auto_pad="SAME_LOWER")
conv("same_lower_stride", (1, 3, 9, 8), (4, 3, 4, 3), auto_pad="SAME_LOWER", strides=[2, 3])
conv("valid", (1, 3, 8, 8), (4, 3, 3, 3), auto_pad="VALID", strides=[2, 2])
conv("notset", (1, 3, 8, 8), (4, 3, 3, 3), auto_pad="NOTSET", pads=[1, 0, 1, 0], kernel_shape=[3, 3])
conv("1d", (2, 3, 16), (4, 3, 3), bias=True, pads=[1, 1])
conv("1d_stride_dilation", (1, 3, 17), (4, 3, 3), strides=[2], dilations=[3])
conv("1d_asymmetric", (1, 3, 16), (4, 3, 4), pads=[3, 0])
conv("1d_group", (1, 4, 16), (4, 1, 3), group=4)
conv("1d_same_upper", (1, 3, 15), (4, 3, 4), auto_pad="SAME_UPPER", strides=[2])
conv("3d", (1, 2, 5, 6, 7), (3, 2, 3, 2, 3), bias=True)
conv("3d_pads_stride", (1, 2, 5, 6, 7), (3, 2, 3, 3, 3), pads=[1, 1, 1, 1, 1, 1], strides=[2, 1, 2])
conv("opset7", (1, 3, 8, 8), (4, 3, 3, 3), bias=True, opset=7, pads=[1, 1, 1, 1])
conv("opset22", (1, 3, 8, 8), (4, 3, 3, 3), opset=22)
conv("one_pixel", (1, 4, 1, 1), (2, 4, 3, 3), pads=[1, 1, 1, 1])
conv("many_channels", (1, 40, 6, 6), (70, 40, 3, 3), bias=True, pads=[1, 1, 1, 1])
cases.op("weight_is_input", "Conv", f32(rng, 1, 3, 6, 6), f32(rng, 2, 3, 3, 3), f32(rng, 2))
cases.op("f16", "Conv", f32(rng, 1, 3, 6, 6).astype(np.float16), f32(rng, 2, 3, 3, 3).astype(np.float16), const=(1,))


def transposed(name, data, weight, bias=0, **attributes):
    """A ConvTranspose of random data."""
    b = [f32(rng, bias)] if bias else []
    cases.op(name, "ConvTranspose", f32(rng, *data), f32(rng, *weight), *b, const=(1, 2), **attributes)


transposed("plain", (1, 3, 5, 5), (3, 4, 3, 3))
transposed("bias_stride", (2, 3, 5, 5), (3, 4, 2, 2), 4, strides=[2, 2])
transposed("pads", (1, 3, 5, 5), (3, 4, 4, 4), strides=[2, 2], pads=[1, 1, 1, 1])
transposed("pads_asymmetric", (1, 3, 5, 6), (3, 4, 4, 4), strides=[2, 2], pads=[1, 0, 2, 1])
transposed("output_padding", (1, 3, 5, 5), (3, 4, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1])
transposed("output_padding_one_axis", (1, 3, 5, 5), (3, 4, 3, 3), strides=[2, 3], output_padding=[0, 2])
transposed("dilations", (1, 3, 5, 5), (3, 4, 3, 3), dilations=[2, 1])
transposed("group", (1, 4, 5, 5), (4, 3, 3, 3), 6, group=2)
transposed("depthwise", (1, 4, 5, 5), (4, 1, 2, 2), group=4, strides=[2, 2])
transposed("1d", (1, 3, 9), (3, 2, 4), 2, strides=[2], pads=[1, 1])
transposed("3d", (1, 2, 3, 4, 3), (2, 3, 2, 2, 2), 3, strides=[2, 2, 2])
transposed(
    "3d_pads", (1, 2, 3, 4, 3), (2, 3, 3, 2, 3), 3, strides=[2, 1, 2], pads=[1, 0, 0, 1, 1, 1], output_padding=[1, 0, 1]
)
transposed("same_upper", (1, 3, 5, 5), (3, 4, 3, 4), 4, strides=[2, 2], auto_pad="SAME_UPPER")
transposed("same_lower", (1, 3, 5, 6), (3, 4, 4, 3), strides=[2, 3], auto_pad="SAME_LOWER")
transposed("valid", (1, 3, 5, 5), (3, 4, 3, 3), auto_pad="VALID", strides=[2, 2])
transposed("output_shape", (1, 3, 5, 5), (3, 4, 3, 3), 4, strides=[2, 2], output_shape=[10, 9])
transposed(
    "output_shape_upper", (1, 3, 5, 5), (3, 4, 4, 4), strides=[3, 2], output_shape=[13, 9], auto_pad="SAME_UPPER"
)
transposed("pads_end", (1, 3, 5, 6), (3, 4, 4, 4), 4, strides=[2, 2], pads=[0, 1, 2, 3])
transposed("opset7", (1, 3, 5, 5), (3, 4, 3, 3), 4, opset=7, kernel_shape=[3, 3])


def pool(name, data, kernel, kinds=("MaxPool", "AveragePool"), opset=17, **attributes):
    """The same window as a MaxPool and as an AveragePool."""
    for kind in kinds:
        cases.op(name, kind, f32(rng, *data), kernel_shape=kernel, opset=opset, **attributes)


AVERAGE = ("AveragePool",)
MAX = ("MaxPool",)
pool("plain", (2, 3, 8, 8), [2, 2])
pool("strides", (1, 3, 9, 8), [3, 2], strides=[2, 2])
pool("overlap", (1, 3, 9, 9), [3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
pool("pads_asymmetric", (1, 3, 9, 9), [3, 3], strides=[2, 2], pads=[0, 1, 2, 1])
pool("pads_end_only", (1, 2, 8, 8), [3, 3], strides=[2, 2], pads=[0, 0, 1, 1])
pool("dilated_over_padding", (1, 2, 1), [2], AVERAGE, opset=19, dilations=[2], pads=[1, 1])
pool("ceil", (1, 3, 8, 8), [3, 3], strides=[2, 2], ceil_mode=1)
pool("ceil_exact", (1, 3, 9, 9), [3, 3], strides=[2, 2], ceil_mode=1)
pool("ceil_one", (1, 2, 2, 4), [3, 3], strides=[3, 2], ceil_mode=1)
pool("ceil_pads", (1, 3, 8, 8), [3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1)
pool("ceil_drops_last", (1, 1, 5, 5), [2, 2], strides=[3, 3], pads=[1, 1, 1, 1], ceil_mode=1)
pool("same_upper", (1, 3, 8, 8), [3, 3], auto_pad="SAME_UPPER", strides=[2, 2])
pool("same_lower", (1, 3, 8, 8), [2, 3], auto_pad="SAME_LOWER")
pool("valid", (1, 3, 8, 8), [3, 3], auto_pad="VALID", strides=[3, 3])
pool("1d", (2, 3, 15), [3], strides=[2], pads=[1, 0])
pool("1d_ceil", (2, 3, 16), [3], strides=[2], ceil_mode=1)
pool("3d", (1, 2, 6, 6, 6), [2, 2, 2], strides=[2, 2, 2])
pool("3d_pads", (1, 2, 6, 5, 7), [3, 2, 3], strides=[2, 1, 2], pads=[1, 0, 1, 1, 1, 0])
pool("3d_ceil", (1, 2, 6, 7, 6), [3, 3, 2], strides=[2, 2, 3], ceil_mode=1)
pool("global_window", (1, 3, 7, 7), [7, 7])
pool("negative", (1, 3, 6, 6), [3, 3], pads=[1, 1, 1, 1], opset=12)
pool("dilations", (1, 3, 11, 11), [3, 3], MAX, dilations=[2, 2])
pool("dilations_pads", (1, 2, 11, 10), [3, 2], MAX, dilations=[2, 3], pads=[1, 1, 1, 1], strides=[2, 2])
pool("dilations", (1, 3, 11, 11), [3, 3], AVERAGE, opset=19, dilations=[2, 2])
pool(
    "dilations_include",
    (1, 3, 11, 11),
    [3, 3],
    AVERAGE,
    opset=19,
    dilations=[2, 2],
    pads=[2, 2, 2, 2],
    count_include_pad=1,
)
pool("include_pad", (1, 3, 8, 8), [3, 3], AVERAGE, pads=[1, 1, 1, 1], count_include_pad=1)
pool("include_pad_asymmetric", (1, 3, 8, 8), [3, 3], AVERAGE, pads=[2, 0, 1, 1], strides=[2, 2], count_include_pad=1)
pool(
    "include_pad_ceil",
    (1, 3, 8, 8),
    [3, 3],
    AVERAGE,
    pads=[1, 1, 1, 1],
    strides=[2, 2],
    ceil_mode=1,
    count_include_pad=1,
    opset=19,
)
pool("include_pad_same", (1, 3, 8, 8), [3, 3], AVERAGE, auto_pad="SAME_UPPER", strides=[2, 2], count_include_pad=1)
pool("opset7", (1, 3, 8, 8), [2, 2], opset=7, strides=[2, 2])
pool("all_negative", (1, 1, 4, 4), [2, 2], MAX, pads=[1, 1, 1, 1])
cases.op("u8", "MaxPool", rng.integers(0, 255, (1, 3, 6, 6), np.uint8), kernel_shape=[2, 2], strides=[2, 2])
cases.op("i8_pads", "MaxPool", rng.integers(-128, -1, (1, 3, 6, 6), np.int8), kernel_shape=[3, 3], pads=[1, 1, 1, 1])

for p in (1, 2, 3):
    pool(f"p{p}", (1, 3, 8, 8), [3, 3], ("LpPool",), p=p, strides=[2, 2], pads=[1, 1, 1, 1])
    cases.op(f"p{p}", "GlobalLpPool", f32(rng, 2, 3, 4, 5), p=p)
pool("1d", (1, 3, 9), [3], ("LpPool",))
pool("3d", (1, 2, 5, 5, 5), [2, 3, 2], ("LpPool",), strides=[1, 2, 2])
pool("same_upper", (1, 3, 8, 8), [3, 3], ("LpPool",), auto_pad="SAME_UPPER", strides=[2, 2])
pool("dilations", (1, 3, 9, 9), [3, 2], ("LpPool",), opset=18, dilations=[2, 3])


def indexed(name, data, kernel, **attributes):
    """A MaxPool that tells where it found its maxima."""
    cases.op(f"indices_{name}", "MaxPool", f32(rng, *data), kernel_shape=kernel, outputs=2, **attributes)


indexed("1d", (2, 3, 9), [3], strides=[2], pads=[1, 0])
indexed("2d", (2, 3, 7, 6), [3, 2], strides=[2, 2], pads=[1, 0, 1, 1])
indexed("3d", (1, 2, 5, 4, 6), [2, 2, 3], strides=[2, 1, 2])
indexed("dilations", (1, 2, 9, 9), [2, 3], dilations=[2, 3])
indexed("columns", (2, 2, 7, 6), [3, 2], strides=[2, 2], storage_order=1)
cases.op("indices_ties", "MaxPool", np.ones((1, 2, 5, 5), np.float32), kernel_shape=[3, 3], pads=[1] * 4, outputs=2)
cases.op("indices_u8", "MaxPool", rng.integers(0, 9, (1, 2, 5, 5), np.uint8), kernel_shape=[3, 3], outputs=2)

PLACES = np.array([[[[1, 3], [9, 15]], [[17, 22], [26, 31]]]], np.int64)
cases.op("plain", "MaxUnpool", f32(rng, 1, 2, 2, 2), PLACES, kernel_shape=[2, 2], strides=[2, 2])

MOVED = f32(rng, 1, 2 * 2 * 9, 4, 4)
MASK = f32(rng, 1, 2 * 9, 4, 4)
cases.op("plain", "DeformConv", f32(rng, 1, 4, 6, 6), f32(rng, 3, 4, 3, 3), MOVED[:, :18], opset=19)
cases.op("groups", "DeformConv", f32(rng, 1, 4, 6, 6), f32(rng, 6, 2, 3, 3), MOVED, f32(rng, 6), MASK, opset=19,
         group=2, offset_group=2)  # fmt: skip
cases.op("strides", "DeformConv", f32(rng, 1, 4, 9, 9), f32(rng, 3, 4, 3, 3), MOVED[:, :18], opset=19,
         strides=[2, 2], pads=[1, 1, 1, 1], dilations=[2, 2])  # fmt: skip

for kind in ("GlobalAveragePool", "GlobalMaxPool"):
    cases.op("2d", kind, f32(rng, 2, 3, 5, 7))
    cases.op("1d", kind, f32(rng, 2, 3, 9))
    cases.op("3d", kind, f32(rng, 1, 2, 3, 4, 5))
    cases.op("one_pixel", kind, f32(rng, 2, 3, 1, 1))
