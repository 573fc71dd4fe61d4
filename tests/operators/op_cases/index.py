"""Operators that pick by index or condition: Gather, ScatterND, Where; Identity and Dropout."""

import numpy as np

from .build import Cases, f32, i64

cases = Cases()
rng = np.random.default_rng(7)
X = f32(rng, 3, 4, 5)

cases.op("scalar", "Gather", X, np.int64(1), const=(1,))
cases.op("vector", "Gather", X, i64(2, 0, 2), const=(1,))
cases.op("matrix", "Gather", X, np.array([[0, 1], [2, 2]]), const=(1,), axis=1)
cases.op("negative", "Gather", X, i64(-1, -3, 0), const=(1,), axis=2)
cases.op("negative_scalar", "Gather", X, np.int64(-1), const=(1,), axis=1)
cases.op("negative_axis", "Gather", X, i64(0, 3), const=(1,), axis=-2)
cases.op("i32", "Gather", X, np.array([1, 0], np.int32), const=(1,))
cases.op("indices_are_input", "Gather", X, i64(2, 1), axis=1)
cases.op("embedding", "Gather", f32(rng, 20, 6), rng.integers(0, 20, (2, 7)), const=(0,))
cases.op("ints", "Gather", rng.integers(0, 99, (6,)), i64(4, -2), const=(1,))
cases.op("empty", "Gather", X, np.zeros(0, np.int64), const=(1,))
cases.op("opset7", "Gather", X, i64(1, 2), const=(1,), opset=7)

cases.op("rows", "ScatterND", X, np.array([[2], [0]]), f32(rng, 2, 4, 5))
cases.op("elements", "ScatterND", X, np.array([[0, 1, 2], [2, 3, 4]]), f32(rng, 2))
cases.op("columns", "ScatterND", X, np.array([[0, 1], [2, 3], [1, 0]]), f32(rng, 3, 5))
cases.op("negative", "ScatterND", X, np.array([[-1, 1]]), f32(rng, 1, 5))
cases.op("block", "ScatterND", f32(rng, 2, 3), np.array([[[0, 0], [0, 2]], [[1, 1], [1, 0]]]), f32(rng, 2, 2))
cases.op("ints", "ScatterND", i64(1, 2, 3, 4), np.array([[1], [3]]), i64(9, 8))
cases.op("constant_indices", "ScatterND", X, np.array([[1]]), f32(rng, 1, 4, 5), const=(1,))
cases.op("opset11", "ScatterND", X, np.array([[1]]), f32(rng, 1, 4, 5), opset=11)

COND = rng.random((3, 4)) > 0.5
cases.op("same", "Where", COND, f32(rng, 3, 4), f32(rng, 3, 4))
cases.op("scalar", "Where", COND, f32(rng, 3, 4), np.float32(-1e9), const=(2,))
cases.op("scalar_first", "Where", COND, np.float32(0), f32(rng, 3, 4), const=(1,))
cases.op("broadcast", "Where", COND[:, :1], f32(rng, 4), f32(rng, 2, 1, 1))
cases.op("condition_widens", "Where", rng.random((2, 3, 4)) > 0.5, f32(rng, 4), f32(rng, 3, 1))
cases.op("ints", "Where", COND, rng.integers(0, 9, (3, 4)), rng.integers(0, 9, 4))
cases.op("constant_condition", "Where", COND, f32(rng, 3, 4), f32(rng, 3, 4), const=(0,))
cases.op("opset9", "Where", COND, f32(rng, 3, 4), f32(rng, 3, 4), opset=9)
cases.op("infinite", "Where", COND, f32(rng, 3, 4), np.float32(-np.inf), const=(2,))

cases.op("f32", "Identity", X)
cases.op("ints", "Identity", i64(1, 2))
cases.op("opset7", "Dropout", X, opset=7, ratio=0.3)
cases.op("opset12", "Dropout", X, np.float32(0.5), const=(1,), opset=12)
cases.op("no_ratio", "Dropout", X, opset=13)
cases.op("seed", "Dropout", X, opset=13, seed=3)
