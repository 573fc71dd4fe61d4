"""Operators that find, scatter, repeat and rearrange, and Einsum."""

import numpy as np

from .build import Cases, f32, i64

cases = Cases()
rng = np.random.default_rng(23)
X = f32(rng, 3, 4, 5)
INTS = rng.integers(-9, 9, (3, 4, 5))
DOUBLES = rng.standard_normal((3, 4, 5))
KINDS = {"f32": X, "i64": INTS, "f64": DOUBLES, "i32": INTS.astype(np.int32)}


def index(size, *shape):
    return rng.integers(-size, size, shape)


def distinct(size, *shape):
    """Indices along the first axis that don't meet."""
    return np.argsort(rng.random((size, *shape[1:])), axis=0)[: shape[0]]


for kind, x in KINDS.items():
    cases.op(kind, "GatherElements", x, index(4, 3, 2, 5), axis=1)
    cases.op(f"pairs_{kind}", "GatherND", x, np.stack([index(3, 6), index(4, 6)], -1))
    cases.op(kind, "ScatterElements", x, distinct(3, 2, 4, 5), x[1:] * 2)
    cases.op(kind, "Tile", x, i64(2, 1, 3), const=(1,))
    cases.op(kind, "TopK", x, i64(3), outputs=2, const=(1,))
    cases.op(f"smallest_{kind}", "TopK", x, i64(2), outputs=2, axis=0, largest=0)
    cases.op(kind, "Trilu", x)
    if kind != "f64":
        cases.op(kind, "NonZero", np.where(x > 0, x, 0))
cases.op("small", "GatherElements", X, index(3, 2, 1, 3))
cases.op("last", "GatherElements", X, index(5, 3, 4, 9), axis=-1, opset=11)
cases.op("whole", "GatherND", X, np.stack([index(3, 2, 2), index(4, 2, 2), index(5, 2, 2)], -1))
cases.op("rows", "GatherND", X, index(3, 4, 2, 1), opset=11)
cases.op("batches", "GatherND", X, index(4, 3, 2, 1), batch_dims=1)
cases.op("batches_2", "GatherND", X, index(5, 3, 4, 1), batch_dims=2)

for how in ("add", "mul", "max", "min"):
    for kind in ("f32", "i64", "f64", "i32"):
        x = KINDS[kind]
        cases.op(f"{how}_{kind}", "ScatterElements", x, index(5, 3, 4, 3), x[:, :, :3], axis=2, reduction=how, opset=18)
        cases.op(f"{how}_{kind}", "ScatterND", x, index(3, 4, 1), np.tile(x[:1], (4, 1, 1)), reduction=how, opset=18)
cases.op("opset9", "Scatter", X, distinct(3, 2, 4, 5), X[1:], opset=9)
cases.op("opset11", "ScatterElements", X, distinct(3, 1, 2, 2), X[:1, :2, :2], opset=11)
cases.op("none", "ScatterND", X, np.zeros((0, 1), np.int64), np.zeros((0, 4, 5), np.float32))

cases.op("last", "OneHot", index(6, 2, 3), np.int64(6), f32(rng, 2), const=(1,))
cases.op("first", "OneHot", index(9, 2, 3), np.int64(4), i64(7, 9), const=(1,), axis=0)
cases.op("floats", "OneHot", np.array([1.0, 2.0, -1.0], np.float32), np.float32(3), f32(rng, 2), axis=-2, opset=11)
cases.op("above", "EyeLike", X[0], k=1)
cases.op("below", "EyeLike", X[0], k=-2, dtype=7)
cases.op("ints", "EyeLike", INTS[0])
cases.op("lower", "Trilu", X, np.int64(1), upper=0)
cases.op("far", "Trilu", X, np.int64(-9), const=(1,))

cases.op("opset7", "TopK", X, opset=7, outputs=2, k=2, axis=1)
cases.op("opset10", "TopK", X, i64(4), opset=10, outputs=2, axis=1)
cases.op("all", "TopK", X, i64(5), outputs=2)
cases.op("equal", "TopK", np.ones((2, 6), np.float32), i64(4), outputs=2)
cases.op("axis", "Compress", X, np.array([True, False, True]), axis=1)
cases.op("flat", "Compress", INTS, rng.random(60) > 0.5)
cases.op("nothing", "Compress", X, np.array([False, False]), axis=0)
cases.op("flat", "Unique", INTS, outputs=4)
cases.op("first_come", "Unique", INTS, outputs=4, sorted=0)
cases.op("rows", "Unique", f32(rng, 3, 2)[index(3, 7)], outputs=4, axis=0)
cases.op("columns", "Unique", f32(rng, 2, 3, 2)[:, index(3, 7)], outputs=4, axis=1, sorted=0)
cases.op("only_values", "Unique", X.round())

PICTURE = f32(rng, 2, 8, 4, 6)
cases.op("dcr", "DepthToSpace", PICTURE, blocksize=2)
cases.op("crd", "DepthToSpace", PICTURE, blocksize=2, mode="CRD")
cases.op("opset7", "DepthToSpace", PICTURE, blocksize=2, opset=7)
cases.op("f32", "SpaceToDepth", PICTURE, blocksize=2)
cases.op("f64", "SpaceToDepth", PICTURE.astype(np.float64), blocksize=2)
cases.op("time_first", "ReverseSequence", X, i64(3, 1, 0, 2), time_axis=0, batch_axis=1)
cases.op("batch_first", "ReverseSequence", INTS, i64(2, 4, 1), time_axis=1, batch_axis=0)
cases.op("both", "CenterCropPad", X, i64(5, 2, 8), const=(1,), opset=18)
cases.op("axes", "CenterCropPad", X, i64(7, 2), opset=18, axes=[-1, 0])
cases.op("ints", "CenterCropPad", INTS, i64(6), opset=18, axes=[1])
cases.op("one", "Size", X)
cases.op("scalar", "Size", np.float32(1), opset=7)

cases.op("plain", "Col2Im", f32(rng, 2, 12, 12), i64(4, 5), i64(2, 2), opset=18)
cases.op("wide", "Col2Im", f32(rng, 1, 9, 4), i64(5, 5), i64(3, 3), strides=[2, 2], opset=18)

for mode in ("constant", "edge", "reflect", "wrap"):
    opset = 19 if mode == "wrap" else 13
    cases.op(f"{mode}_wide", "Pad", X, i64(2, 1, 0, 0, 3, 4), const=(1,), mode=mode, opset=opset)
    cases.op(f"{mode}_ints_wide", "Pad", INTS, i64(0, 2, 1, 1, 1, 2), mode=mode, opset=opset)
cases.op("of_nothing", "Pad", np.zeros((0, 2), np.float32), i64(1, 0, 1, 0), np.float32(3), const=(1, 2))
cases.op("opset7", "Pad", X, opset=7, pads=[0, 1, 2, 0, 0, 1], value=1.5)

A, B, C = f32(rng, 3, 4), f32(rng, 4, 5), f32(rng, 5, 3)
EQUATIONS = {
    "product": ("ij,jk->ik", A, B),
    "implicit": ("ij,jk", A, B),
    "chain": ("ij,jk,kl->il", A, B, C),
    "chain_trace": ("ij,jk,ki->", A, B, C),
    "outer": ("i,j->ij", A[0], B[0]),
    "sum": ("ijk->", X),
    "sum_some": ("ijk->j", X),
    "turned": ("ijk->kij", X),
    "turned_implicit": ("ba", A),
    "diagonal": ("iij->ij", f32(rng, 3, 3, 2)),
    "trace": ("ii", f32(rng, 4, 4)),
    "batches": ("bij,bjk->bik", f32(rng, 2, 3, 4), f32(rng, 2, 4, 5)),
    "heads": ("bhqd,bhkd->bhqk", f32(rng, 2, 3, 4, 5), f32(rng, 2, 3, 6, 5)),
    "ellipsis": ("...ij,...jk->...ik", f32(rng, 2, 3, 4), f32(rng, 2, 4, 5)),
    "ellipsis_broadcast": ("...ij,...jk->...ik", f32(rng, 2, 1, 3, 4), f32(rng, 1, 3, 4, 5)),
    "ellipsis_implicit": ("...ij,...jk", f32(rng, 2, 3, 4), f32(rng, 2, 4, 5)),
    "ellipsis_turned": ("a...b->b...a", X),
    "unlike": ("i,jk,ij->jk", A[:, 0], f32(rng, 4, 2), A),
    "spaces": (" i j , j k -> i k ", A, B),
    "elementwise": ("ij,ij->ij", A, f32(rng, 3, 4)),
    "left_sum": ("ij,k->k", A, B[0]),
    "doubles": ("ij,jk->ki", A.astype(np.float64), B.astype(np.float64)),
    "ints": ("ij,jk->ik", INTS[0], INTS[1].T),
    "scalar": (",i->i", np.float32(2), A[0]),
}
for name, (equation, *inputs) in EQUATIONS.items():
    cases.op(name, "Einsum", *inputs, equation=equation)
cases.op("matrix", "Det", f32(rng, 4, 4))
cases.op("batch", "Det", f32(rng, 2, 3, 5, 5))
cases.op("singular", "Det", np.ones((3, 3), np.float32))

cases.op("size", "Range", np.int64(3), np.int64(20), np.int64(4), const=(0, 1, 2))
cases.op("doubles", "Range", np.float64(3), np.float64(-2), np.float64(-0.5))

EMPTY = np.zeros((0, 3), np.float32)
cases.op("zeros", "NonZero", np.zeros((2, 3), np.float32))
cases.op("empty", "NonZero", EMPTY)
cases.op("empty", "Compress", EMPTY, np.zeros(0, bool), axis=0)
cases.op("none", "TopK", X, i64(0), outputs=2)
cases.op("empty", "TopK", EMPTY, i64(2), outputs=2)
cases.op("empty", "Unique", np.zeros(0, np.int64), outputs=4)
cases.op("none", "Tile", X, i64(1, 0, 2))
cases.op("empty", "Tile", EMPTY, i64(2, 2), const=(1,))
cases.op("empty", "Size", EMPTY)
cases.op("empty", "Trilu", EMPTY)
cases.op("empty", "GatherElements", X, np.zeros((0, 4, 5), np.int64))
cases.op("empty", "ScatterElements", X, np.zeros((0, 4, 5), np.int64), np.zeros((0, 4, 5), np.float32))
cases.op("empty", "OneHot", np.zeros((0, 2), np.int64), np.int64(3), f32(rng, 2))
cases.op("sum_of_none", "Einsum", np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32), equation="ij,jk->ik")
cases.op("empty", "Einsum", EMPTY, f32(rng, 3, 2), equation="ij,jk->ik")
