"""Softmax and reductions."""

import numpy as np

from .build import Cases, f32, i64

cases = Cases()
rng = np.random.default_rng(4)

for op in ("Softmax", "LogSoftmax"):
    cases.op("default", op, f32(rng, 2, 3, 5))
    cases.op("axis1", op, f32(rng, 2, 3, 5), axis=1)
    cases.op("axis0", op, f32(rng, 2, 3, 5), axis=0)
    cases.op("axis_minus2", op, f32(rng, 2, 3, 5), axis=-2)
    cases.op("vector", op, f32(rng, 7))
    cases.op("large", op, np.array([[1000, 1001, 999], [-1000, 0, 1000]], np.float32))
    # Before opset 13 the axes from `axis` on were one; without a rank that can't be told.
    cases.op("opset11_matrix", op, f32(rng, 2, 5), opset=11, forms=("model", "symbolic", "constant"))
    cases.op("opset11_last", op, f32(rng, 2, 3, 5), opset=11, axis=-1)
    cases.op("opset7", op, f32(rng, 2, 3, 5), opset=7, axis=2, forms=("model", "symbolic", "constant"))

KINDS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
for op in KINDS:
    # ReduceSum took its axes as an input from opset 13 on, the others from 18 on.
    old, new = (11, 13) if op == "ReduceSum" else (13, 18)
    data = f32(rng, 2, 3, 4, 5)
    cases.op("all_old", op, data, opset=old)
    cases.op("axes_old", op, data, opset=old, axes=[1, 3])
    cases.op("flat_old", op, data, opset=old, axes=[2], keepdims=0)
    cases.op("negative_old", op, data, opset=old, axes=[-1, -2])
    cases.op("opset7", op, data, opset=7, axes=[2, 3])
    cases.op("all", op, data, opset=new)
    cases.op("all_flat", op, data, opset=new, keepdims=0)
    cases.op("axes", op, data, i64(1, 3), opset=new, const=(1,))
    cases.op("axes_flat", op, data, i64(0, -1), opset=new, const=(1,), keepdims=0)
    cases.op("axes_are_input", op, data, i64(2), opset=new)
    cases.op("noop", op, data, opset=new, noop_with_empty_axes=1)
    cases.op("empty_axes", op, data, np.zeros(0, np.int64), opset=new, const=(1,))
    cases.op("one_element_axis", op, f32(rng, 2, 1, 3), i64(1), opset=new, const=(1,))
    cases.op("vector", op, f32(rng, 6), i64(0), opset=new, const=(1,), keepdims=0)
    if op != "ReduceMean":
        cases.op("i64", op, rng.integers(1, 5, (2, 3, 4)), i64(1), opset=new, const=(1,))
        cases.op("i32", op, rng.integers(1, 5, (2, 3, 4)).astype(np.int32), i64(2), opset=new, const=(1,), keepdims=0)
cases.op("empty_tensor", "ReduceSum", np.zeros((2, 0, 3), np.float32), i64(1), opset=13, const=(1,))
for kind in ("Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"):
    cases.op("empty_tensor", f"Reduce{kind}", np.zeros((2, 0, 3), np.float32), i64(1), opset=18, const=(1,))
    cases.op("empty_i32", f"Reduce{kind}", np.zeros((2, 0, 3), np.int32), i64(1), opset=18, const=(1,))
cases.op("long", "ReduceSum", f32(rng, 1, 4000), i64(1), opset=13, const=(1,))
cases.op("long", "ReduceMean", f32(rng, 3, 1000) + 10, i64(1), opset=18, const=(1,))
