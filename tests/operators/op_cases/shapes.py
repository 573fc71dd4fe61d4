"""Shape arithmetic: Shape, Expand, ConstantOfShape, Range, and the chains exporters make of them."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from .build import Cases, f32, i64

cases = Cases()
rng = np.random.default_rng(6)
X = f32(rng, 2, 3, 4)

cases.op("all", "Shape", X)
cases.op("ints", "Shape", i64(1, 2, 3))
cases.op("scalar", "Shape", np.float32(1))
cases.op("start", "Shape", X, start=1)
cases.op("end", "Shape", X, end=-1)
cases.op("start_end", "Shape", X, start=-2, end=3)
cases.op("nothing", "Shape", X, start=2, end=1)
cases.op("beyond", "Shape", X, start=-9, end=9)
cases.op("opset7", "Shape", X, opset=7)

cases.op("rows", "Expand", f32(rng, 1, 4), i64(3, 4), const=(1,))
cases.op("front", "Expand", f32(rng, 3, 1), i64(2, 3, 4), const=(1,))
cases.op("ones_keep", "Expand", X, i64(1, 1, 1), const=(1,))
cases.op("shorter", "Expand", X, i64(3, 1), const=(1,))
cases.op("scalar", "Expand", np.float32(2), i64(2, 2), const=(1,))
cases.op("shape_is_input", "Expand", f32(rng, 1, 4), i64(3, 4))
cases.op("ints", "Expand", i64(1, 2), i64(3, 2), const=(1,))
cases.op("bools", "Expand", np.array([True, False]), i64(3, 2), const=(1,))
cases.op("opset8", "Expand", f32(rng, 1, 4), i64(3, 4), const=(1,), opset=8)


def filled(value):
    """The attribute of a ConstantOfShape."""
    return numpy_helper.from_array(np.asarray(value).reshape(1), "value")


cases.op("default", "ConstantOfShape", i64(2, 3))
cases.op("float", "ConstantOfShape", i64(2, 3), value=filled(np.float32(1.5)))
cases.op("int", "ConstantOfShape", i64(4), value=filled(np.int64(7)))
cases.op("bool", "ConstantOfShape", i64(4, 1), value=filled(np.array(True)))
cases.op("scalar", "ConstantOfShape", np.zeros(0, np.int64), value=filled(np.float32(3)))
cases.op("empty", "ConstantOfShape", i64(2, 0, 3))
cases.op("opset9", "ConstantOfShape", i64(2, 3), opset=9, value=filled(np.int32(-4)))

for name, dtype, numbers in (
    ("i64", np.int64, (2, 10, 3)),
    ("down", np.int64, (10, 2, -3)),
    ("empty", np.int64, (5, 5, 1)),
    ("wrong_way", np.int64, (5, 1, 1)),
    ("i32", np.int32, (0, 6, 1)),
    ("f32", np.float32, (0.5, 4.2, 0.75)),
    ("f32_down", np.float32, (4, 0.1, -1.5)),
):
    cases.op(name, "Range", *[np.array(n, dtype) for n in numbers])


def chain(name, nodes, feeds, constants, **rest):
    """A case of several nodes, each (operator, inputs, output, attributes)."""
    made = [helper.make_node(op, i.split(), [o], name=f"n_{o}", **a) for op, i, o, a in nodes]
    cases.graph(f"shapes_{name}", made, feeds, constants, **rest)


IMAGE = {"x": f32(rng, 2, 3, 4, 4)}
chain(
    "flatten_by_hand",
    [
        ("Shape", "x", "s", {}),
        ("Gather", "s zero", "n", {"axis": 0}),
        ("Unsqueeze", "n first", "nu", {}),
        ("Concat", "nu rest", "t", {"axis": 0}),
        ("Reshape", "x t", "y", {}),
    ],
    IMAGE,
    {"zero": np.int64(0), "first": i64(0), "rest": i64(-1)},
)
chain(
    "heads",
    [
        ("Shape", "x", "s", {}),
        ("Slice", "s a b", "front", {}),
        ("Concat", "front heads", "t", {"axis": 0}),
        ("Reshape", "x t", "r", {}),
        ("Transpose", "r", "y", {"perm": [0, 2, 1, 3]}),
    ],
    {"x": f32(rng, 2, 5, 12)},
    {"a": i64(0), "b": i64(2), "heads": i64(3, 4)},
)
chain(
    "halves",
    [
        ("Shape", "x", "s", {}),
        ("Gather", "s one", "c", {"axis": 0}),
        ("Div", "c two", "h", {}),
        ("Unsqueeze", "h first", "hu", {}),
        ("Slice", "x zero hu axis", "y", {}),
    ],
    {"x": f32(rng, 2, 6, 3)},
    {"one": np.int64(1), "two": np.int64(2), "first": i64(0), "zero": i64(0), "axis": i64(1)},
)
chain(
    "positions",
    [
        ("Shape", "x", "s", {}),
        ("Gather", "s one", "n", {"axis": 0}),
        ("Range", "nought n step", "r", {}),
        ("Cast", "r", "f", {"to": TensorProto.FLOAT}),
        ("Unsqueeze", "f last", "u", {}),
        ("Add", "x u", "y", {}),
    ],
    {"x": f32(rng, 2, 5, 3)},
    {"one": np.int64(1), "nought": np.int64(0), "step": np.int64(1), "last": i64(1)},
)
chain(
    "mask",
    [
        ("Shape", "x", "s", {}),
        ("ConstantOfShape", "s", "ones", {"value": filled(np.float32(1))}),
        ("Equal", "ones one", "where", {}),
        ("Where", "where x ones", "y", {}),
    ],
    {"x": X},
    {"one": np.float32(1)},
)
chain(
    "expand_like",
    [("Shape", "x", "s", {}), ("Expand", "token s", "e", {}), ("Concat", "e x", "y", {"axis": 1})],
    {"x": f32(rng, 2, 5, 3)},
    {"token": f32(rng, 1, 1, 3)},
)
chain(
    "upsample_like",
    [
        ("Shape", "x", "s", {}),
        ("Slice", "s a b", "front", {}),
        ("Concat", "front size", "t", {"axis": 0}),
        ("Resize", "x none none t", "y", {"mode": "nearest"}),
    ],
    IMAGE,
    {"a": i64(0), "b": i64(2), "size": i64(6, 8), "none": np.zeros(0, np.float32)},
    opset=11,
)
chain(
    "padding_by_arithmetic",
    [
        ("Shape", "x", "s", {}),
        ("Gather", "s two", "h", {"axis": 0}),
        ("Sub", "big h", "p", {}),
        ("Unsqueeze", "p first", "pu", {}),
        ("Concat", "zeros pu last", "pads", {"axis": 0}),
        ("Pad", "x pads", "y", {}),
    ],
    IMAGE,
    {"two": np.int64(2), "big": np.int64(9), "first": i64(0), "zeros": i64(*[0] * 6), "last": i64(0)},
)
