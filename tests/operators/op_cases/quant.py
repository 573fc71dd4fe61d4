"""QuantizeLinear and DequantizeLinear: integers must come out equal to the last bit."""

import numpy as np
from onnx import helper

from .build import Cases, f32

cases = Cases()
rng = np.random.default_rng(9)
X = f32(rng, 2, 3, 4, scale=3)
SCALE = np.float32(0.047)


def vector(*values):
    """Scales along an axis."""
    return np.array(values, np.float32)


cases.op("u8", "QuantizeLinear", X, SCALE, np.uint8(128), const=(1, 2))
cases.op("i8", "QuantizeLinear", X, SCALE, np.int8(-3), const=(1, 2))
cases.op("u8_zero", "QuantizeLinear", X, SCALE, np.uint8(0), const=(1, 2))
cases.op("no_zero_point", "QuantizeLinear", X, SCALE, const=(1,))
cases.op("saturates", "QuantizeLinear", X * 100, SCALE, np.int8(0), const=(1, 2))
cases.op("ties", "QuantizeLinear", np.arange(-4, 5, dtype=np.float32) / 2, np.float32(1), np.int8(0), const=(1, 2))
cases.op(
    "ties_odd_zero", "QuantizeLinear", np.arange(-4, 5, dtype=np.float32) / 2, np.float32(1), np.uint8(7), const=(1, 2)
)
cases.op("opset10", "QuantizeLinear", X, SCALE, np.uint8(3), const=(1, 2), opset=10)
cases.op("per_axis", "QuantizeLinear", X, vector(0.1, 0.02, 0.3), np.array([0, 5, 128], np.uint8), const=(1, 2))
cases.op("per_axis_last", "QuantizeLinear", X, vector(0.1, 0.02, 0.3, 1), np.zeros(4, np.int8), const=(1, 2), axis=-1)
cases.op("per_axis_first", "QuantizeLinear", X, vector(0.1, 0.02), np.zeros(2, np.int8), const=(1, 2), axis=0)
cases.op("all_inputs", "QuantizeLinear", X, SCALE, np.uint8(9))
cases.op("scalar", "QuantizeLinear", np.float32(1.23), SCALE, np.uint8(9), const=(1, 2))
cases.op("u16", "QuantizeLinear", X, np.float32(0.001), np.uint16(32768), const=(1, 2), opset=21)
cases.op("i16", "QuantizeLinear", X, np.float32(0.001), np.int16(5), const=(1, 2), opset=21)

U8 = rng.integers(0, 255, (2, 3, 4), np.uint8)
I8 = rng.integers(-128, 127, (2, 3, 4), np.int8)
I32 = rng.integers(-(10**6), 10**6, (2, 3, 4), np.int32)
cases.op("u8", "DequantizeLinear", U8, SCALE, np.uint8(128), const=(1, 2))
cases.op("i8", "DequantizeLinear", I8, SCALE, np.int8(-3), const=(1, 2))
cases.op("no_zero_point", "DequantizeLinear", I8, SCALE, const=(1,))
cases.op("i32", "DequantizeLinear", I32, SCALE, const=(1,))
cases.op("i32_zero", "DequantizeLinear", I32, SCALE, np.int32(0), const=(1, 2))
cases.op("opset10", "DequantizeLinear", U8, SCALE, np.uint8(3), const=(1, 2), opset=10)
cases.op("per_axis", "DequantizeLinear", I8, vector(0.1, 0.02, 0.3), np.array([0, 5, -12], np.int8), const=(1, 2))
cases.op("per_axis_last", "DequantizeLinear", U8, vector(0.1, 0.02, 0.3, 1), const=(1,), axis=-1)
cases.op("per_axis_first", "DequantizeLinear", I8, vector(0.1, 0.02), const=(1,), axis=0)
cases.op("per_axis_bias", "DequantizeLinear", I32[0, :, 0], vector(0.1, 0.02, 0.3), const=(1,), axis=0)
cases.op("all_inputs", "DequantizeLinear", U8, SCALE, np.uint8(9))
cases.op(
    "u16", "DequantizeLinear", rng.integers(0, 65535, (3, 4), np.uint16), SCALE, np.uint16(500), const=(1, 2), opset=21
)


def qdq(name, middle, feeds, constants, scale=np.float32(0.05), zero=np.uint8(120), **rest):
    """Quantise, dequantise, compute, and quantise again: what an integer kernel fuses."""
    constants = constants | {"qs": scale, "qz": zero}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "qs", "qz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "qs", "qz"], ["xd"]),
        *[helper.make_node(op, i.split(), [o], name=o, **a) for op, i, o, a in middle],
    ]
    cases.graph(f"qdq_{name}", nodes, feeds, constants, **rest)


IMAGE = {"x": f32(rng, 1, 3, 6, 6, scale=2)}
qdq("round_trip", [("Identity", "xd", "y", {})], IMAGE, {})
qdq("max_pool", [("MaxPool", "xd", "y", {"kernel_shape": [2, 2]})], IMAGE, {})
WEIGHT = {"wq": rng.integers(-127, 127, (4, 3, 3, 3), np.int8), "ws": vector(0.01, 0.02, 0.03, 0.005)}
qdq(
    "conv",
    [("DequantizeLinear", "wq ws", "w", {"axis": 0}), ("Conv", "xd w", "y", {"pads": [1, 1, 1, 1]})],
    IMAGE,
    WEIGHT,
)
qdq(
    "conv_bias",
    [
        ("DequantizeLinear", "wq ws", "w", {"axis": 0}),
        ("DequantizeLinear", "bq bs", "b", {"axis": 0}),
        ("Conv", "xd w b", "c", {}),
        ("Relu", "c", "y", {}),
    ],
    IMAGE,
    WEIGHT | {"bq": rng.integers(-9999, 9999, 4, np.int32), "bs": WEIGHT["ws"] * np.float32(0.05)},
)
qdq(
    "gemm",
    [("DequantizeLinear", "wq ws", "w", {"axis": 0}), ("Gemm", "xd w", "y", {"transB": 1})],
    {"x": f32(rng, 3, 8)},
    {"wq": rng.integers(-127, 127, (5, 8), np.int8), "ws": f32(rng, 5) ** 2 / 50 + np.float32(0.001)},
)
