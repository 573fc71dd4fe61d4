"""Products of codes by the range of a run: DynamicQuantizeLinear, MatMulInteger, and what makes floats of its sums."""

import numpy as np

from .net import Cases, Net

cases = Cases(107)
FLOAT = 1
FUSED = "DynamicQuantizeMatMul"


def weight(k, columns, kind=np.int8, per_channel=True, zeros=False):
    """Codes of a matrix, their scales, and their zero points if there are any."""
    bits = np.iinfo(kind)
    codes = cases.rng.integers(bits.min + 1, bits.max, (k, columns)).astype(kind)
    n = columns if per_channel else 1
    scales = (0.001 + 0.01 * cases.rng.random(n)).astype(np.float32)
    points = cases.rng.integers(-9, 9, n) + (128 if kind == np.uint8 else 0)
    if not per_channel:
        scales, points = scales[0], points[0]
    return codes, scales, (points.astype(kind),) if zeros else ()


def scaled(net, x, w, twice=False, turned=False):
    """The sums of `x`, codes with their scale and zero point, by `w`, as floats."""
    codes, scale, zero = x
    sums = net.op("Cast", net.op("MatMulInteger", codes, w[0], zero, *w[2]), to=FLOAT)
    if twice:
        return net.op("Mul", net.op("Mul", sums, scale), w[1])
    factors = [sums, net.op("Mul", scale, w[1])]
    return net.op("Mul", *(reversed(factors) if turned else factors))


def product(name, left, k=20, columns=7, x=None, bias=False, after=(), fused=FUSED, twice=False, turned=False, **how):
    """One product of floats by a matrix of codes."""
    net = Net()
    x = cases.f32(*left, k) if x is None else x
    q = net.op("DynamicQuantizeLinear", net.input(x, dynamic=len(left) > 1), outputs=3)
    y = scaled(net, q, weight(k, columns, **how), twice, turned)
    if bias:
        y = net.op("Add", y, cases.f32(columns))
    for op, *more in after:
        y = net.op(op, y, *more)
    net.output(y)
    cases.add(f"dynamic_{name}", net, fused)


product("2d", (3,))
product("one_row", (1,), k=40, columns=33)
product("3d", (2, 5))
product("4d", (2, 2, 3))
product("many", (140,), k=130, columns=70)
product("per_tensor", (4,), per_channel=False)
product("zeros", (4,), zeros=True)
product("zero_of_all", (4,), per_channel=False, zeros=True)
product("u8_weight", (4,), kind=np.uint8)
product("u8_weight_zeros", (2, 4), kind=np.uint8, zeros=True)
product("bias", (3,), bias=True)
product("bias_zeros_relu", (3,), bias=True, zeros=True, after=[("Relu",)])
product("bias_relu", (3, 4), k=64, columns=48, bias=True, after=[("Relu",)])
product("bias_sigmoid", (3, 4), k=64, columns=48, bias=True, zeros=True, after=[("Sigmoid",)])
product("scales_one_by_one", (3,), twice=True, fused=())
product("scales_first", (3,), turned=True, fused=())
product("positive", (3,), x=np.abs(cases.f32(3, 20)) + 1)
product("negative", (3,), x=-np.abs(cases.f32(3, 20)) - 1)
product("wide_range", (3,), x=cases.f32(3, 20) * np.float32(1e20))


def nothing():
    """An input without a range: its scale is 1."""
    net = Net()
    q = net.op("DynamicQuantizeLinear", net.input(np.zeros((3, 20), np.float32)), outputs=3)
    net.output(scaled(net, q, weight(20, 7)))
    net.output(q[1])
    cases.add("dynamic_nothing", net, "MatMulIntegerToFloat")


def shared():
    """Three products of one input, whose codes, scale and zero point are outputs too."""
    net = Net()
    q = net.op("DynamicQuantizeLinear", net.input(cases.f32(2, 5, 24), dynamic=True), outputs=3)
    for columns in (8, 8, 40):
        net.output(scaled(net, q, weight(24, columns)))
    for part in q:
        net.output(part)
    cases.add("dynamic_shared", net, "MatMulIntegerToFloat")


def sums_alone(kind):
    """Codes that are given; nothing scales their sums, which are read twice."""
    net = Net()
    bits = np.iinfo(kind)
    x = net.input(cases.rng.integers(bits.min, bits.max, (4, 20)).astype(kind))
    sums = net.op("Cast", net.op("MatMulInteger", x, weight(20, 7)[0], np.asarray(5, kind)), to=FLOAT)
    net.output(net.op("Add", sums, net.op("Relu", sums)))
    bare = net.op("MatMulInteger", x, weight(20, 7)[0])
    net.output(net.op("Mul", net.op("Cast", bare, to=FLOAT), np.float32(0.25)))
    cases.add(f"dynamic_sums_{np.dtype(kind).name}", net, "MatMulInteger")


def two_layers():
    """The second reads what the first makes, and a product that nothing of ours computes."""
    net = Net()
    x = net.op("DynamicQuantizeLinear", net.input(cases.f32(6, 32), dynamic=True), outputs=3)
    y = net.op("Relu", net.op("Add", scaled(net, x, weight(32, 48)), cases.f32(48)))
    y = net.op("CumSum", y, np.asarray(0, np.int64))
    z = net.op("DynamicQuantizeLinear", y, outputs=3)
    net.output(scaled(net, z, weight(48, 16)))
    net.output(scaled(net, x, weight(32, 16)))
    cases.add("dynamic_two_layers", net, "MatMulIntegerToFloat")


nothing()
shared()
sums_alone(np.uint8)
sums_alone(np.int8)
two_layers()
