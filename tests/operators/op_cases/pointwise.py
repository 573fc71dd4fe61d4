"""Operators that look at one element at a time: unary, binary, activations, casts."""

import numpy as np
from onnx import TensorProto

from .build import Cases, f32

cases = Cases()
rng = np.random.default_rng(3)

SIGNED = f32(rng, 2, 3, 5, scale=2)
POSITIVE = np.abs(SIGNED) + np.float32(0.1)

for op in (
    "Relu",
    "Sigmoid",
    "Tanh",
    "Exp",
    "Erf",
    "Neg",
    "Abs",
    "Sign",
    "Ceil",
    "Floor",
    "Round",
    "Sin",
    "Cos",
    "Softplus",
):
    cases.op("f32", op, SIGNED)
for op in ("Log", "Sqrt", "Reciprocal"):
    cases.op("f32", op, POSITIVE)
cases.op("f32", "HardSwish", f32(rng, 4, 9, scale=4))
cases.op("f32", "Not", rng.random((3, 4)) > 0.5)
cases.op("half", "Round", np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.49, -3.51], np.float32))
cases.op("large", "Softplus", np.array([-200, -50, -1, 0, 1, 50, 200], np.float32))
cases.op("large", "Sigmoid", np.array([-200, -50, -1, 0, 1, 50, 200], np.float32))
cases.op("large", "Tanh", np.array([-200, -50, -1, 0, 1, 50, 200], np.float32))
cases.op("wide", "Erf", np.linspace(-5, 5, 101, dtype=np.float32))
cases.op("small", "Erf", np.linspace(-0.01, 0.01, 21, dtype=np.float32))
cases.op("zero", "Sign", np.array([-3, -0.0, 0.0, 2], np.float32))
cases.op("edge", "Log", np.array([0, 1, 2.7182817], np.float32))
cases.op("negative", "Sqrt", np.array([-1, 0, 4], np.float32))
cases.op("scalar", "Exp", np.float32(1.5))
cases.op("empty", "Relu", np.zeros((0, 3), np.float32))
cases.op("i32", "Relu", rng.integers(-9, 9, (3, 4), np.int32), opset=14)
cases.op("f16", "Relu", SIGNED.astype(np.float16))
cases.op("f16", "Sigmoid", SIGNED.astype(np.float16))
for dtype in (np.int8, np.int32, np.int64):
    values = rng.integers(-9, 9, (3, 4)).astype(dtype)
    cases.op(np.dtype(dtype).name, "Neg", values)
    cases.op(np.dtype(dtype).name, "Abs", values)
    cases.op(np.dtype(dtype).name, "Sign", values)
cases.op("opset7", "Relu", SIGNED, opset=7)
cases.op("opset9", "Erf", SIGNED, opset=9)

cases.op("default", "LeakyRelu", SIGNED)
cases.op("alpha", "LeakyRelu", SIGNED, alpha=0.3)
cases.op("negative_alpha", "LeakyRelu", SIGNED, alpha=-0.5)
cases.op("default", "Elu", SIGNED)
cases.op("alpha", "Elu", SIGNED, alpha=2.0)
cases.op("default", "HardSigmoid", f32(rng, 5, 5, scale=4))
cases.op("sixth", "HardSigmoid", f32(rng, 5, 5, scale=4), alpha=1 / 6, beta=0.5)
cases.op("erf", "Gelu", SIGNED, opset=20)
cases.op("tanh", "Gelu", SIGNED, opset=20, approximate="tanh")

cases.op("both", "Clip", SIGNED, np.float32(-0.5), np.float32(1), const=(1, 2))
cases.op("low", "Clip", SIGNED, np.float32(-0.5), const=(1, 2))
cases.op("high", "Clip", SIGNED, None, np.float32(1), const=(1, 2))
cases.op("none", "Clip", SIGNED)
cases.op("relu6", "Clip", f32(rng, 4, 6, scale=6), np.float32(0), np.float32(6), const=(1, 2))
cases.op("bounds_are_inputs", "Clip", SIGNED, np.float32(-0.5), np.float32(1))
cases.op("opset6_form", "Clip", SIGNED, opset=7, min=-0.5, max=1.0)
cases.op("opset6_low", "Clip", SIGNED, opset=10, min=0.0)
cases.op("opset6_none", "Clip", SIGNED, opset=10)
cases.op("opset11", "Clip", SIGNED, np.float32(-0.5), np.float32(1), opset=11)
cases.op("low_above_high", "Clip", SIGNED, np.float32(1), np.float32(-1), const=(1, 2))
cases.op("i64", "Clip", rng.integers(-9, 9, (3, 4)), np.int64(-3), np.int64(4), opset=12)
cases.op("u8", "Clip", rng.integers(0, 255, (3, 4), np.uint8), np.uint8(30), np.uint8(200), opset=12)

BROADCASTS = {
    "same": ((2, 3, 4), (2, 3, 4)),
    "scalar": ((2, 3, 4), ()),
    "scalar_left": ((), (2, 3, 4)),
    "row": ((2, 3, 4), (4,)),
    "channel": ((2, 3, 4), (3, 1)),
    "both": ((2, 1, 4), (3, 1)),
    "longer_right": ((4,), (2, 3, 4)),
    "one": ((2, 3), (1, 1, 1)),
}
for op in ("Add", "Sub", "Mul", "Div"):
    for name, (a, b) in BROADCASTS.items():
        cases.op(name, op, f32(rng, *a), f32(rng, *b) + 3)
    cases.op("constant_row", op, f32(rng, 2, 3, 4), f32(rng, 4) + 3, const=(1,))
    cases.op("constant_scalar", op, f32(rng, 2, 3, 4), np.float32(1.7), const=(1,))
    cases.op("constant_scalar_left", op, np.float32(1.7), f32(rng, 2, 3, 4) + 5, const=(0,))
    for dtype in (np.int32, np.int64):
        values = rng.integers(-50, 50, (2, 3, 4)).astype(dtype), rng.integers(1, 9, (3, 1)).astype(dtype)
        cases.op(np.dtype(dtype).name, op, *values)
    cases.op("opset7", op, f32(rng, 2, 3, 4), f32(rng, 3, 1) + 3, opset=7)
    cases.op("f16", op, f32(rng, 3, 4).astype(np.float16), (f32(rng, 4) + 3).astype(np.float16))
cases.op("overflow_i32", "Mul", np.array([2**30, -(2**30), 7], np.int32), np.array([3, 3, 3], np.int32))
cases.op("overflow_i64", "Add", np.array([2**63 - 1, -(2**63)], np.int64), np.array([1, -1], np.int64))
cases.op("towards_zero", "Div", np.array([-7, 7, -7, 7], np.int64), np.array([2, -2, -2, 2], np.int64))
cases.op("by_zero", "Div", np.array([1, -1, 0], np.float32), np.zeros(3, np.float32))
cases.op("u8", "Add", rng.integers(0, 100, (3, 4), np.uint8), rng.integers(0, 100, 4, np.uint8), opset=14)
cases.op("f64", "Add", f32(rng, 3, 4).astype(np.float64), f32(rng, 4).astype(np.float64))
cases.op("empty", "Add", np.zeros((0, 3), np.float32), f32(rng, 3))

for name, (a, b) in list(BROADCASTS.items())[:6]:
    cases.op(name, "Pow", np.abs(f32(rng, *a)) + np.float32(0.1), f32(rng, *b))
cases.op("square", "Pow", SIGNED, np.float32(2), const=(1,))
cases.op("cube", "Pow", SIGNED, np.float32(3), const=(1,))
cases.op("half", "Pow", POSITIVE, np.float32(0.5), const=(1,))
cases.op("inverse", "Pow", POSITIVE, np.float32(-1), const=(1,))
cases.op("zero", "Pow", SIGNED, np.float32(0), const=(1,))
cases.op("negative_base", "Pow", np.array([-2, -3, -1.5], np.float32), np.array([2, 3, 4], np.float32))
cases.op("int_exponent", "Pow", SIGNED, np.int64(2), opset=15)
cases.op("int_exponents", "Pow", SIGNED[0], np.array([[1], [2], [3]], np.int32), opset=15)
cases.op("ints", "Pow", np.array([2, -3, 5], np.int64), np.array([10, 3, 0], np.int64), opset=15)
cases.op("int_base", "Pow", np.array([2, 9, 5], np.int64), np.array([3, 0.5, 2], np.float32), opset=15)
cases.op("opset7", "Pow", POSITIVE, np.float32(1.5), opset=7)

for op in ("Min", "Max"):
    for name, (a, b) in BROADCASTS.items():
        cases.op(name, op, f32(rng, *a), f32(rng, *b))
    cases.op("constant_scalar", op, f32(rng, 2, 3), np.float32(0.2), const=(1,))
    cases.op("i64", op, rng.integers(-9, 9, (3, 4)), rng.integers(-9, 9, 4), opset=12)
    cases.op("u8", op, rng.integers(0, 255, (3, 4), np.uint8), rng.integers(0, 255, 4, np.uint8), opset=12)
    cases.op("opset8", op, f32(rng, 2, 3), f32(rng, 3), opset=8)
    cases.op("opset7", op, f32(rng, 2, 3), f32(rng, 2, 3), opset=7)
    cases.op("nan", op, np.array([np.nan, 1, 2], np.float32), np.array([1, np.nan, 3], np.float32))

cases.op("channel", "PRelu", f32(rng, 2, 3, 4, 4), f32(rng, 3, 1, 1), const=(1,))
cases.op("scalar", "PRelu", f32(rng, 2, 3), f32(rng, 1), const=(1,))
cases.op("full", "PRelu", f32(rng, 2, 3), f32(rng, 2, 3))
cases.op("opset7", "PRelu", f32(rng, 2, 3, 4, 4), f32(rng, 3, 1, 1), opset=7)

NEAR = np.array([[0, 1, -1], [2, 0, 0.5]], np.float32), np.array([0, 0.5, -1], np.float32)
for op in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"):
    cases.op("f32", op, *NEAR)
    cases.op("scalar", op, NEAR[0], np.float32(0), const=(1,))
    cases.op("i64", op, rng.integers(-3, 3, (3, 4)), rng.integers(-3, 3, 4))
    cases.op("nan", op, np.array([np.nan, 1, np.inf], np.float32), np.array([np.nan, np.nan, np.inf], np.float32))
cases.op("bool", "Equal", rng.random((3, 4)) > 0.5, rng.random(4) > 0.5)
cases.op("opset9", "Less", *NEAR, opset=9)
cases.op("opset9", "Greater", rng.integers(-3, 3, (3, 4)), rng.integers(-3, 3, 4), opset=9)
for op in ("And", "Or", "Xor"):
    cases.op("same", op, rng.random((3, 4)) > 0.5, rng.random((3, 4)) > 0.5)
    cases.op("broadcast", op, rng.random((3, 1)) > 0.5, rng.random(4) > 0.5)

WHOLE = np.array([-3, -1, 0, 1, 2, 100], np.float32)
CASTS = {
    "i8": (TensorProto.INT8, WHOLE),
    "u8": (TensorProto.UINT8, np.abs(WHOLE)),
    "i16": (TensorProto.INT16, WHOLE),
    "u16": (TensorProto.UINT16, np.abs(WHOLE)),
    "i32": (TensorProto.INT32, np.array([-2.9, -1.5, -0.1, 0.9, 1.5, 2.9e6], np.float32)),
    "u32": (TensorProto.UINT32, np.abs(WHOLE)),
    "i64": (TensorProto.INT64, np.array([-2.9, -1.5, -0.1, 0.9, 1.5, 2.9e9], np.float32)),
    "u64": (TensorProto.UINT64, np.abs(WHOLE)),
    "bool": (TensorProto.BOOL, np.array([0, -0.0, 0.3, -2, 1], np.float32)),
    "f16": (TensorProto.FLOAT16, np.array([0.1, 1 / 3, 65504, 1e-6, -7.77], np.float32)),
    "f64": (TensorProto.DOUBLE, SIGNED),
    "f32": (TensorProto.FLOAT, SIGNED),
}
for name, (to, values) in CASTS.items():
    cases.op(f"f32_to_{name}", "Cast", values, to=to)
    cases.op(f"i64_to_{name}", "Cast", np.array([0, 1, 2, 100], np.int64), to=to)
    if name != "bool":
        cases.op(f"bool_to_{name}", "Cast", np.array([True, False, True]), to=to)
for dtype in (np.int8, np.uint8, np.int16, np.int32, np.float16, np.float64, np.uint64):
    cases.op(f"{np.dtype(dtype).name}_to_f32", "Cast", np.array([0, 1, 7, 100], dtype), to=TensorProto.FLOAT)
    cases.op(f"{np.dtype(dtype).name}_to_i64", "Cast", np.array([0, 1, 7, 100], dtype), to=TensorProto.INT64)
cases.op("i64_to_i32_wraps", "Cast", np.array([2**32 + 5, -(2**31) - 1], np.int64), to=TensorProto.INT32)
cases.op("i32_to_u8_wraps", "Cast", np.array([-1, 256, 300], np.int32), to=TensorProto.UINT8)
cases.op("f64_to_i64", "Cast", np.array([1e15 + 0.5, -1e15 - 0.5], np.float64), to=TensorProto.INT64)
cases.op("opset9", "Cast", np.array([1.5, -2.5], np.float32), to=TensorProto.INT64, opset=9)

# Lines that are added to several lines that follow each other, as masks of attention are.
LINES = np.random.default_rng(22)
cases.op("mask", "Add", f32(LINES, 2, 3, 4, 5), f32(LINES, 2, 1, 1, 5))
cases.op("mask_of_heads", "Add", f32(LINES, 2, 3, 1, 5), f32(LINES, 2, 3, 4, 5))
cases.op("mask_of_all", "Add", f32(LINES, 2, 3, 4, 5), f32(LINES, 1, 1, 4, 5))
