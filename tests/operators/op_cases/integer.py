"""Products of quantised tensors: integers must come out equal to the last bit."""

import numpy as np

from .build import Cases, f32

cases = Cases()
rng = np.random.default_rng(11)


def u8(*shape):
    """Bytes."""
    return rng.integers(0, 256, shape, np.uint8)


def i8(*shape):
    """Signed bytes."""
    return rng.integers(-128, 128, shape, np.int8)


def zeros(*values, of=np.uint8):
    """Zero points along an axis."""
    return np.array(values, of)


ONE = np.uint8(131)
cases.op("plain", "ConvInteger", u8(1, 3, 6, 6), u8(4, 3, 3, 3))
cases.op("zero", "ConvInteger", u8(1, 3, 6, 6), u8(4, 3, 3, 3), ONE, np.uint8(9), const=(1, 2, 3), pads=[1, 1, 1, 1])
cases.op("i8_weight", "ConvInteger", u8(2, 4, 6, 6), i8(6, 2, 3, 3), ONE, group=2, strides=[2, 1], dilations=[1, 2])
cases.op("deep", "ConvInteger", u8(1, 300, 5, 5), i8(3, 300, 3, 3), ONE, const=(1, 2))
cases.op("1d", "ConvInteger", u8(1, 3, 9), i8(4, 3, 3), np.uint8(3), pads=[0, 1])

cases.op("plain", "MatMulInteger", u8(4, 3), u8(3, 5))
cases.op("zero", "MatMulInteger", u8(4, 3), i8(3, 5), ONE, np.int8(-5), const=(1, 2, 3))
cases.op("zero_columns", "MatMulInteger", u8(4, 3), i8(3, 5), ONE, zeros(1, 2, -3, 4, 5, of=np.int8), const=(3,))
cases.op("batch", "MatMulInteger", u8(2, 4, 3), u8(2, 3, 5), ONE, np.uint8(7))
cases.op("broadcast", "MatMulInteger", u8(2, 3, 4, 3), u8(3, 5), ONE, np.uint8(7))
cases.op("deep", "MatMulInteger", u8(2, 900), i8(900, 3), ONE, const=(1,))


def qconv(name, data, weight, scale=np.float32(0.01), zero=np.int8(0), bias=False, **attributes):
    """A QLinearConv of random data, with a weight of signed bytes."""
    b = [rng.integers(-3000, 3000, weight[0], np.int32)] if bias else []
    cases.op(name, "QLinearConv", u8(*data), np.float32(0.02), ONE, i8(*weight), scale, zero,
             np.float32(0.05), np.uint8(120), *b, const=range(1, 9), **attributes)  # fmt: skip


qconv("plain", (1, 3, 6, 6), (4, 3, 3, 3))
qconv("bias", (2, 3, 6, 6), (4, 3, 3, 3), bias=True, pads=[1, 1, 1, 1])
qconv(
    "per_channel",
    (1, 3, 6, 6),
    (4, 3, 3, 3),
    np.array([0.01, 0.002, 0.03, 0.004], np.float32),
    zeros(0, 0, 0, 0, of=np.int8),
    True,
)
qconv("group", (1, 4, 6, 6), (6, 2, 3, 3), bias=True, group=2, strides=[2, 2])
qconv("deep", (1, 200, 5, 5), (3, 200, 3, 3), np.float32(0.0003), bias=True)
qconv("1d", (1, 3, 9), (4, 3, 3), bias=True)

SCALES = np.float32(0.02), np.float32(0.003), np.float32(0.04)
cases.op("plain", "QLinearMatMul", u8(4, 30), SCALES[0], ONE, u8(30, 5), SCALES[1], ONE, SCALES[2], np.uint8(99))
cases.op(
    "i8", "QLinearMatMul", i8(4, 30), SCALES[0], np.int8(3), i8(30, 5), SCALES[1], np.int8(-4), SCALES[2], np.int8(1)
)
cases.op(
    "batch",
    "QLinearMatMul",
    u8(2, 4, 9),
    SCALES[0],
    ONE,
    i8(2, 9, 5),
    SCALES[1],
    np.int8(0),
    SCALES[2],
    ONE,
    const=(3, 4, 5),
)
COLUMNS = np.array([0.01, 0.02, 0.003], np.float32)
cases.op("columns", "QLinearMatMul", u8(4, 9), SCALES[0], ONE, i8(9, 3), COLUMNS, zeros(1, 0, -2, of=np.int8),
         SCALES[2], ONE, const=range(1, 8))  # fmt: skip

cases.op("plain", "DynamicQuantizeLinear", f32(rng, 3, 4), outputs=3)
cases.op("positive", "DynamicQuantizeLinear", np.abs(f32(rng, 3, 4)) + 1, outputs=3)
cases.op("negative", "DynamicQuantizeLinear", -np.abs(f32(rng, 7)) - 1, outputs=3)
cases.op("empty", "DynamicQuantizeLinear", np.zeros((0, 4), np.float32), outputs=3)
