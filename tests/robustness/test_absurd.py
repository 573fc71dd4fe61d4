"""Operators with absurd sizes, indices and numbers, folded and run: refused or survived, never a crash."""

from itertools import product

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

# Numbers that arithmetic on sizes stumbles over.
ABSURD = (-(2**63), -1, 0, 2**31, 2**62, 2**63 - 1)


def i64(*values):
    return np.array(values, np.int64)


def ones(*shape):
    return np.ones(shape, np.float32)


def at(n):
    """Cases (operator, inputs, attributes) around one number."""
    mel = [np.int64(4), np.int64(16), np.int64(8192), np.float32(0), np.float32(4000)]
    columns = np.ones((1, 0, 4), np.int64)
    yield from [
        ("Tile", [ones(2, 3), i64(n, 2)], {}),
        ("Tile", [ones(0, 3), i64(n, n)], {}),
        ("OneHot", [i64(1, 2), np.int64(n), ones(2)], {}),
        ("Range", [np.int64(0), np.int64(n), np.int64(1)], {}),
        ("Range", [np.int64(n), np.int64(5), np.int64(n)], {}),
        ("Trilu", [ones(2, 3), np.int64(n)], {}),
        ("EyeLike", [ones(2, 3)], {"k": n}),
        ("TopK", [ones(2, 3), i64(n)], {}),
        ("CenterCropPad", [ones(2, 3), i64(n, 2)], {}),
        ("CenterCropPad", [ones(2, 3), i64(1, n)], {"axes": [0, 0]}),
        ("Col2Im", [ones(1, 4, 4), i64(n, 4), i64(2, 2)], {}),
        ("Col2Im", [columns, i64(4, 4), i64(n, 2)], {}),
        ("Col2Im", [ones(1, 4, 4), i64(4, 4), i64(2, 2)], {"strides": [n, 1], "pads": [n] * 4}),
        ("DFT", [ones(2, 3, 1), np.int64(n)], {}),
        ("DFT", [ones(2, 3, 2), np.int64(n)], {"onesided": 1, "inverse": 1}),
        ("STFT", [ones(2, 30, 1), np.int64(n), ones(8)], {}),
        ("STFT", [ones(2, 30, 1), np.int64(1), None, np.int64(n)], {}),
        ("HannWindow", [np.int64(n)], {}),
        *(("MelWeightMatrix", [*mel[:i], np.int64(n), *mel[i + 1 :]], {}) for i in range(3)),
        ("AffineGrid", [ones(2, 2, 3), i64(2, 1, n, 3)], {}),
        ("NonMaxSuppression", [ones(1, 3, 4), ones(1, 1, 3), i64(n)], {}),
        ("RoiAlign", [ones(1, 1, 4, 4), ones(1, 4) * np.float32(n), i64(0)], {}),
        ("RoiAlign", [ones(1, 1, 4, 4), ones(1, 4), i64(n)], {}),
        ("MaxRoiPool", [ones(1, 1, 4, 4), ones(1, 5) * np.float32(n)], {"pooled_shape": [2, 2]}),
        ("GatherElements", [i64(2, 3), i64(n)], {}),
        ("GatherND", [ones(2, 3), np.full((2, 1), n)], {}),
        ("ScatterElements", [i64(2, 3), i64(n), i64(5)], {}),
        ("ScatterND", [ones(2, 3), np.full((1, 1), n), ones(1, 3)], {}),
        ("ReverseSequence", [ones(2, 3), i64(n, 1)], {"batch_axis": 0, "time_axis": 1}),
        ("DepthToSpace", [ones(1, 4, 2, 2)], {"blocksize": n}),
        ("Expand", [i64(2), i64(n)], {}),
        ("ConstantOfShape", [i64(n, n, 0)], {}),
        ("Slice", [ones(4, 3), i64(n), i64(5), i64(0), i64(n)], {}),
    ]
    for mode in ("constant", "reflect", "edge", "wrap"):
        yield "Pad", [ones(2, 3), i64(n, 0, 0, 0)], {"mode": mode}
        yield "Pad", [ones(0, 3), i64(0, n, 0, n)], {"mode": mode}


CASES = [case for n in ABSURD for case in at(n)]
for value, mode, pad in product((np.nan, np.inf, 1e30), ("nearest", "linear", "cubic"), ("border", "reflection")):
    grid = np.full((1, 2, 2, 2), value, np.float32)
    CASES.append(("GridSample", [ones(1, 1, 1, 3), grid], {"mode": mode, "padding_mode": pad}))
CASES.append(("GridSample", [ones(1, 1, *[1] * 20), np.zeros((1, *[1] * 20, 20), np.float32)], {"mode": "cubic"}))
for equation in ("", "->", "ii,jj", "......", "ij,jk->iij", "ij->k", "ij,", "ij->ij->i"):
    CASES.append(("Einsum", [ones(2, 3), ones(3, 2)], {"equation": equation}))
CASES.append(("Einsum", [ones(1000)] * 4, {"equation": "a,b,c,d->abcd"}))


@pytest.mark.parametrize("op_type", sorted({op for op, _, _ in CASES}))
def test_absurd_numbers_are_survived(compress, tmp_path, op_type):
    path = tmp_path / "model.onnx"
    for _, inputs, attributes in (c for c in CASES if c[0] == op_type):
        names = [f"x{i}" if v is not None else "" for i, v in enumerate(inputs)]
        node = helper.make_node(op_type, names, ["y"], **attributes)
        tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in zip(names, inputs) if v is not None]
        first = helper.make_tensor_value_info("x0", tensors[0].data_type, tensors[0].dims)
        for folded in (True, False):
            sources = ([], tensors) if folded else ([first], tensors[1:])
            graph = helper.make_graph([node], "g", sources[0], [onnx.ValueInfoProto(name="y")], sources[1])
            onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10), path)
            # Malformed, too large, not supported, or fine; 7 is for inputs that can't be made up.
            refused = (0, 3, 4, 5, 7)
            compress(*([path, "--force"] if folded else ["bench", path]), code=refused)
