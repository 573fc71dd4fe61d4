"""Operators that move elements: reshape, transpose, concat, split, slice, pad."""

import numpy as np

from .build import Cases, f32, i64

cases = Cases()
rng = np.random.default_rng(5)
X = f32(rng, 2, 3, 4)
INTS = rng.integers(-99, 99, (2, 3, 4))


def reshape(name, data, *target, **rest):
    """A Reshape to a constant target."""
    cases.op(name, "Reshape", data, i64(*target), const=(1,), **rest)


reshape("flat", X, 24)
reshape("rest", X, 4, -1)
reshape("zero_copies", X, 0, -1)
reshape("zero_and_rest", X, 0, 0, 2, -1)
reshape("more_axes", X, 2, 3, 2, 2, 1)
reshape("scalar", np.ones((1, 1), np.float32))
reshape("ints", INTS, 6, 4)
reshape("opset7", X, 6, 4, opset=7)
reshape("allow_zero", np.zeros((0, 3), np.float32), 3, 0, opset=14, allowzero=1)
reshape("bool", INTS > 0, 4, 6)
cases.op("target_is_input", "Reshape", X, i64(3, 8))
for axis in (0, 1, 2, 3, -1, -2):
    cases.op(f"axis{axis}".replace("-", "m"), "Flatten", X, axis=axis)
cases.op("default", "Flatten", f32(rng, 2, 3, 2, 2))
cases.op("ints", "Flatten", INTS)
cases.op("opset7", "Flatten", f32(rng, 2, 3, 2, 2), opset=7)

ONES = f32(rng, 1, 3, 1, 4, 1)
cases.op("all", "Squeeze", ONES)
cases.op("some", "Squeeze", ONES, i64(0, 2), const=(1,))
cases.op("negative", "Squeeze", ONES, i64(-1), const=(1,))
cases.op("axes_are_input", "Squeeze", ONES, i64(2))
cases.op("opset11", "Squeeze", ONES, opset=11, axes=[0, 4])
cases.op("opset11_all", "Squeeze", ONES, opset=11)
cases.op("opset11_negative", "Squeeze", ONES, opset=11, axes=[-3])
cases.op("opset7", "Squeeze", ONES, opset=7, axes=[2])
cases.op("scalar", "Squeeze", np.ones((1, 1), np.float32))
cases.op("ints", "Squeeze", rng.integers(0, 9, (1, 4)), i64(0), const=(1,))
cases.op("front", "Unsqueeze", X, i64(0), const=(1,))
cases.op("two", "Unsqueeze", X, i64(1, 3), const=(1,))
cases.op("unsorted", "Unsqueeze", X, i64(4, 0), const=(1,))
cases.op("negative", "Unsqueeze", X, i64(-1), const=(1,))
cases.op("negative_two", "Unsqueeze", X, i64(0, -2), const=(1,))
cases.op("axes_are_input", "Unsqueeze", X, i64(1))
cases.op("opset11", "Unsqueeze", X, opset=11, axes=[0, 4])
cases.op("opset7", "Unsqueeze", X, opset=7, axes=[2])
cases.op("scalar", "Unsqueeze", np.float32(3), i64(0), const=(1,))
cases.op("int_scalar", "Unsqueeze", np.int64(3), i64(0), const=(1,))

cases.op("default", "Transpose", X)
for perm in ([0, 2, 1], [1, 0, 2], [2, 0, 1], [0, 1, 2]):
    cases.op("perm" + "".join(map(str, perm)), "Transpose", X, perm=perm)
cases.op("nchw_to_nhwc", "Transpose", f32(rng, 2, 3, 4, 5), perm=[0, 2, 3, 1])
cases.op("rank5", "Transpose", f32(rng, 2, 1, 3, 2, 2), perm=[4, 0, 3, 1, 2])
cases.op("ints", "Transpose", INTS, perm=[2, 1, 0])
cases.op("vector", "Transpose", f32(rng, 4))
cases.op("opset7", "Transpose", X, opset=7, perm=[1, 0, 2])

for axis in (0, 1, -1):
    shapes = [[2, 3, 4], [2, 3, 4], [2, 3, 4]]
    shapes[1][axis] = 5
    cases.op(f"axis{axis}".replace("-", "m"), "Concat", *[f32(rng, *s) for s in shapes], axis=axis)
cases.op("one", "Concat", X, axis=1)
cases.op("ints", "Concat", INTS, INTS, axis=1)
cases.op("constant", "Concat", X, f32(rng, 2, 1, 4), const=(1,), axis=1)
cases.op("empty_part", "Concat", X, np.zeros((2, 0, 4), np.float32), axis=1)
cases.op("bools", "Concat", INTS > 0, INTS > 5, axis=0)
cases.op("opset7", "Concat", X, X, axis=-1 % 3, opset=7)

cases.op("equal", "Split", f32(rng, 2, 6), outputs=3, axis=1, opset=13)
cases.op("sizes", "Split", f32(rng, 2, 6), i64(1, 2, 3), const=(1,), outputs=3, axis=1)
cases.op("sizes_are_input", "Split", f32(rng, 2, 6), i64(4, 2), outputs=2, axis=-1)
cases.op("zero_size", "Split", f32(rng, 2, 6), i64(6, 0), const=(1,), outputs=2, axis=1)
cases.op("default_axis", "Split", f32(rng, 4, 3), outputs=2)
cases.op("opset11", "Split", f32(rng, 2, 6), outputs=2, axis=1, opset=11, split=[5, 1])
cases.op("opset11_equal", "Split", f32(rng, 6, 2), outputs=3, opset=11)
cases.op("opset7", "Split", f32(rng, 2, 6), outputs=2, axis=1, opset=7, split=[2, 4])
cases.op("opset18", "Split", f32(rng, 2, 7), outputs=3, axis=1, opset=18, num_outputs=3)
cases.op("opset18_sizes", "Split", f32(rng, 2, 7), i64(2, 5), const=(1,), outputs=2, axis=1, opset=18)
cases.op("ints", "Split", rng.integers(0, 9, (6,)), outputs=2)

BIG = 2**63 - 1


def slice_(name, data, starts, ends, axes=None, steps=None, const=(1, 2, 3, 4), **rest):
    """A Slice whose lists are constants."""
    lists = [i64(*starts), i64(*ends), i64(*axes) if axes else None, i64(*steps) if steps else None]
    while lists[-1] is None:
        lists.pop()
    cases.op(name, "Slice", data, *lists, const=const, **rest)


Y = f32(rng, 4, 6, 8)
slice_("plain", Y, (1, 2), (3, 5))
slice_("axes", Y, (1,), (4,), (2,))
slice_("negative_axes", Y, (1,), (4,), (-1,))
slice_("negative", Y, (-3,), (-1,), (1,))
slice_("to_end", Y, (2,), (BIG,), (1,))
slice_("to_end_i32", Y, (2,), (2**31 - 1,), (1,))
slice_("from_before", Y, (-BIG,), (3,), (1,))
slice_("steps", Y, (0, 1), (6, 8), (1, 2), (2, 3))
slice_("reverse", Y, (-1,), (-BIG,), (1,), (-1,))
slice_("reverse_all", Y, (BIG,), (-BIG - 1,), (2,), (-1,))
slice_("reverse_step", Y, (5,), (0,), (1,), (-2,))
slice_("reverse_to_minus", Y, (7,), (-7,), (2,), (-3,))
slice_("empty", Y, (3,), (3,), (1,))
slice_("empty_backwards", Y, (4,), (2,), (1,))
slice_("whole", Y, (0, 0, 0), (BIG, BIG, BIG))
slice_("large_step", Y, (0,), (BIG,), (2,), (100,))
slice_("unsorted_axes", Y, (1, 2), (3, 7), (2, 1))
slice_("are_inputs", Y, (1,), (4,), (2,), (2,), const=())
slice_("opset10", Y, (1,), (-1,), (1,), (2,), opset=10)
slice_("ints", INTS, (1, 0), (3, 4), (1, 2), (1, 2))
slice_("focus", f32(rng, 1, 3, 8, 8), (1, 0), (BIG, BIG), (2, 3), (2, 2))
cases.op("i32", "Slice", Y, np.array([1], np.int32), np.array([5], np.int32), np.array([2], np.int32), const=(1, 2, 3))
cases.op("opset9", "Slice", Y, opset=9, starts=[1, -3], ends=[3, BIG], axes=[0, 2])
cases.op("opset7", "Slice", Y, opset=7, starts=[1, 2], ends=[2, 4])

IMAGE = f32(rng, 1, 2, 4, 5)
PADS = i64(0, 0, 1, 2, 0, 0, 3, 1)
cases.op("default", "Pad", IMAGE, PADS, const=(1,))
cases.op("value", "Pad", IMAGE, PADS, np.float32(2.5), const=(1, 2))
cases.op("reflect", "Pad", IMAGE, PADS, const=(1,), mode="reflect")
cases.op("edge", "Pad", IMAGE, PADS, const=(1,), mode="edge")
cases.op("batch_and_channels", "Pad", IMAGE, i64(1, 2, 0, 0, 0, 1, 0, 0), const=(1,))
cases.op("edge_channels", "Pad", IMAGE, i64(0, 1, 1, 0, 0, 2, 0, 1), const=(1,), mode="edge")
cases.op("negative", "Pad", IMAGE, i64(0, 0, -1, -1, 0, 0, 1, 0), const=(1,))
cases.op("negative_edge", "Pad", IMAGE, i64(0, 0, -1, 2, 0, 0, 0, -1), const=(1,), mode="edge")
cases.op("zero", "Pad", IMAGE, i64(*[0] * 8), const=(1,))
cases.op("pads_are_input", "Pad", IMAGE, PADS)
cases.op("vector", "Pad", f32(rng, 5), i64(2, 1), const=(1,), mode="reflect")
cases.op("ints", "Pad", INTS, i64(0, 1, 0, 0, 0, 2), np.int64(7), const=(1, 2))
cases.op("opset10", "Pad", IMAGE, opset=10, pads=[0, 0, 1, 2, 0, 0, 3, 1], value=1.5)
cases.op("opset10_reflect", "Pad", IMAGE, opset=10, pads=[0, 0, 1, 2, 0, 0, 3, 1], mode="reflect")
cases.op("opset7_edge", "Pad", IMAGE, opset=7, pads=[0, 0, 1, 2, 0, 0, 3, 1], mode="edge")
cases.op("axes", "Pad", IMAGE, i64(1, 2, 3, 1), None, i64(-2, 3), const=(1, 3), opset=18)
cases.op("axes_value", "Pad", IMAGE, i64(1, 2), np.float32(-1), i64(1), const=(1, 2, 3), opset=18)
