"""Quantised Gemm and MatMul."""

import numpy as np
from processor import SATURATES

from .net import Cases, Net

cases = Cases(102)


def gemm(
    name, rows=3, k=20, columns=7, bias="int32", axis=True, trans=1, signed=False, after=(), quantised=True, **rest
):
    """Gemm of a quantised input and weight."""
    fused = rest.pop("fused", "QGemm")
    steps, why = rest.pop("steps", 0), rest.pop("why", "")
    zeros, how = rest.pop("zeros", (117, 99)), rest.pop("weight", {})
    net = Net()
    x = net.quantize(net.input(cases.f32(rows, k), dynamic=rest.pop("dynamic", False)), zero=zeros[0], signed=signed)
    shape = (columns, k) if trans else (k, columns)
    w, scale = net.weight(cases.f32(*shape, scale=0.3), (0 if trans else 1) if axis else None, **how)
    inputs = [net.dequantize(x), w]
    if bias == "int32":
        inputs.append(net.bias(cases.f32(columns), (x.numbers[0] * scale).astype(np.float32)))
    elif bias == "float":
        inputs.append(net.const(cases.f32(columns), "bias"))
    y = net.op("Gemm", *inputs, transB=trans, **rest)
    for op, *more in after:
        y = net.op(op, y, *more)
    net.output(net.qdq(y, zero=zeros[1], signed=signed) if quantised else y)
    cases.add(f"gemm_{name}", net, fused, steps=steps, why=why)


FLOAT = "ONNX Runtime computes it in floats"
gemm("plain")
gemm("not_transposed", trans=0)
gemm("per_tensor", axis=False)
gemm("per_tensor_not_transposed", axis=False, trans=0)
gemm("no_bias", bias=None)
gemm("float_bias", bias="float")
gemm("one_row", rows=1, k=33, columns=10)
gemm("many", rows=5, k=130, columns=70)
gemm("open_batch", dynamic=True)
gemm("s8", signed=True, zeros=(0, -3))
gemm("s8_zeros", signed=True, zeros=(-128, 127))
gemm("zero_0_255", zeros=(0, 255))
gemm("zero_255_0", zeros=(255, 0))
gemm("relu", after=[("Relu",)], zeros=(117, 0))
gemm("relu_zero_117", after=[("Relu",)], zeros=(117, 117), fused=(), steps=1, why=FLOAT)
gemm("u8_weight", axis=False, weight={"kind": np.uint8, "zero": 128})
gemm("float_output", quantised=False)
gemm("float_output_no_bias", quantised=False, bias=None)


def matmul(name, left, k=20, columns=7, axis=None, signed=False, quantised=True, bias=False, **rest):
    """MatMul of quantised activations by a quantised constant."""
    zeros, how, fused = rest.pop("zeros", (117, 99)), rest.pop("weight", {}), rest.pop("fused", "QLinearMatMul")
    net = Net()
    x = net.qdq(net.input(cases.f32(*left, k), dynamic=rest.pop("dynamic", False)), zero=zeros[0], signed=signed)
    w, _ = net.weight(cases.f32(k, columns, scale=0.3), axis, **how)
    y = net.op("MatMul", x, w)
    if bias:
        y = net.op("Add", y, cases.f32(columns))
    net.output(net.qdq(y, zero=zeros[1], signed=signed) if quantised else y)
    cases.add(f"matmul_{name}", net, fused, **rest)


matmul("2d", (3,))
matmul("2d_per_channel", (3,), axis=1)
matmul("one_row", (1,), k=40, columns=33)
matmul("3d", (2, 5))
matmul("3d_per_channel", (2, 5), axis=1)
matmul("3d_open_batch", (2, 5), axis=1, dynamic=True)
matmul("4d", (2, 2, 3))
matmul("s8", (4,), signed=True, zeros=(-5, 5))
matmul("s8_3d", (2, 4), signed=True, zeros=(0, 0))
matmul("zero_0", (4,), zeros=(0, 0))
matmul("zero_255", (4,), zeros=(255, 255))
matmul("u8_weight", (4,), weight={"kind": np.uint8, "zero": 128})
matmul("s8_weight_with_zero", (4,), weight={"zero": -7})
matmul("float_output", (4,), quantised=False, fused="MatMulIntegerToFloat")
matmul("float_output_per_channel", (2, 4), axis=1, quantised=False, fused="MatMulIntegerToFloat")
matmul("bias_after", (4,), bias=True, fused="QGemm")


def of_activations():
    """Both operands are computed, as in attention."""
    net = Net()
    a = net.qdq(net.input(cases.f32(2, 3, 4, 6), "a"), zero=117)
    b = net.qdq(net.input(cases.f32(2, 3, 6, 5), "b"), zero=130)
    net.output(net.qdq(net.op("MatMul", a, b), zero=110))
    cases.add("matmul_of_activations", net, "QLinearMatMul")


def own_format():
    """QLinearMatMul as the file has it."""
    for name, left, signed in (("2d", (3,), False), ("3d", (2, 3), False), ("s8", (3,), True)):
        if signed and SATURATES:
            continue
        net = Net()
        x = net.quantize(net.input(cases.f32(*left, 12)), zero=4 if signed else 117, signed=signed)
        w = net.quantised_weight(cases.f32(12, 5, scale=0.3))
        y_scale, y_zero = net.const(np.float32(0.05)), net.const(np.int8(-9) if signed else np.uint8(99))
        y = net.op("QLinearMatMul", *x.inputs, *w.inputs, y_scale, y_zero)
        net.output(y)
        net.output(net.op("DequantizeLinear", y, y_scale, y_zero))
        cases.add(f"qlinearmatmul_{name}", net, "QLinearMatMul")


of_activations()
own_format()
