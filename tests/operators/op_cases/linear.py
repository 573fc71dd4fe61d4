"""Matrix products and normalisation."""

import numpy as np
from onnx import helper

from .build import Cases, f32, i64

cases = Cases()
rng = np.random.default_rng(2)


def gemm(name, a, b, c=None, opset=17, const=(1, 2), **attributes):
    """A Gemm of random matrices of the given shapes."""
    bias = [f32(rng, *c)] if c is not None else []
    cases.op(name, "Gemm", f32(rng, *a), f32(rng, *b), *bias, opset=opset, const=const, **attributes)


gemm("plain", (3, 4), (4, 5))
gemm("bias", (3, 4), (4, 5), (5,))
gemm("bias_matrix", (3, 4), (4, 5), (3, 5))
gemm("bias_row", (3, 4), (4, 5), (1, 5))
gemm("bias_column", (3, 4), (4, 5), (3, 1))
gemm("bias_scalar", (3, 4), (4, 5), ())
gemm("trans_b", (3, 4), (5, 4), (5,), transB=1)
gemm("trans_a", (4, 3), (4, 5), (5,), transA=1)
gemm("trans_both", (4, 3), (5, 4), (5,), transA=1, transB=1)
gemm("alpha", (3, 4), (4, 5), (5,), alpha=0.5)
gemm("beta", (3, 4), (4, 5), (5,), beta=2.5)
gemm("alpha_beta_trans_b", (3, 4), (5, 4), (5,), alpha=0.25, beta=0.5, transB=1)
gemm("beta_zero", (3, 4), (4, 5), (5,), beta=0.0)
gemm("opset7", (3, 4), (4, 5), (5,), opset=7)
gemm("opset9", (3, 4), (5, 4), (5,), opset=9, transB=1)
gemm("all_inputs", (3, 4), (4, 5), (5,), const=())
gemm("one_row", (1, 64), (10, 64), (10,), transB=1)
gemm("long", (2, 300), (300, 7), (7,))


def matmul(name, a, b, const=(), opset=17):
    """A MatMul of random tensors of the given shapes."""
    cases.op(name, "MatMul", f32(rng, *a), f32(rng, *b), const=const, opset=opset)


matmul("matrices", (3, 4), (4, 5))
matmul("weight", (3, 4), (4, 5), const=(1,))
matmul("constant_left", (3, 4), (4, 5), const=(0,))
matmul("vector_right", (3, 4), (4,))
matmul("vector_left", (4,), (4, 5))
matmul("vectors", (4,), (4,))
matmul("vector_left_batched", (4,), (2, 4, 5))
matmul("vector_right_batched", (2, 3, 4), (4,))
matmul("batched", (2, 3, 4), (2, 4, 5))
matmul("batched_weight", (2, 3, 4), (4, 5), const=(1,))
matmul("batched_left_matrix", (3, 4), (2, 4, 5))
matmul("broadcast", (2, 1, 3, 4), (5, 4, 6))
matmul("broadcast_both", (2, 1, 3, 4), (1, 3, 4, 2))
matmul("rank5", (1, 2, 1, 3, 4), (2, 1, 3, 4, 2))
matmul("attention", (2, 4, 6, 8), (2, 4, 8, 6))
matmul("one_inner", (3, 1), (1, 5))
matmul("opset7", (2, 3, 4), (4, 5), opset=7)
cases.op("i32", "MatMul", rng.integers(-9, 9, (3, 4), np.int32), rng.integers(-9, 9, (4, 5), np.int32))


def norm_inputs(channels):
    """Scale, bias, mean and variance of a BatchNormalization."""
    return f32(rng, channels), f32(rng, channels), f32(rng, channels), rng.random(channels).astype(np.float32) + 0.1


STATISTICS = (1, 2, 3, 4)
cases.op("2d", "BatchNormalization", f32(rng, 2, 3, 4, 5), *norm_inputs(3), const=STATISTICS)
cases.op("1d", "BatchNormalization", f32(rng, 2, 3, 7), *norm_inputs(3), const=STATISTICS)
cases.op("no_axes", "BatchNormalization", f32(rng, 4, 3), *norm_inputs(3), const=STATISTICS)
cases.op("3d", "BatchNormalization", f32(rng, 1, 2, 3, 4, 3), *norm_inputs(2), const=STATISTICS)
cases.op("epsilon", "BatchNormalization", f32(rng, 2, 3, 4, 5), *norm_inputs(3), const=STATISTICS, epsilon=0.5)
cases.op("opset7", "BatchNormalization", f32(rng, 2, 3, 4, 5), *norm_inputs(3), const=STATISTICS, opset=7)
cases.op("opset9", "BatchNormalization", f32(rng, 2, 3, 4, 5), *norm_inputs(3), const=STATISTICS, opset=9, momentum=0.5)
cases.op("inputs", "BatchNormalization", f32(rng, 2, 3, 4, 5), *norm_inputs(3))
cases.op("opset14", "BatchNormalization", f32(rng, 2, 3, 4, 5), *norm_inputs(3), opset=14, training_mode=0)

cases.op("last", "LayerNormalization", f32(rng, 2, 3, 8), f32(rng, 8), f32(rng, 8), const=(1, 2))
cases.op("no_bias", "LayerNormalization", f32(rng, 2, 3, 8), f32(rng, 8), const=(1,))
cases.op("axis1", "LayerNormalization", f32(rng, 2, 3, 8), f32(rng, 3, 8), f32(rng, 3, 8), const=(1, 2), axis=1)
cases.op("axis_minus2", "LayerNormalization", f32(rng, 2, 3, 8), f32(rng, 3, 8), axis=-2)
cases.op("axis0", "LayerNormalization", f32(rng, 3, 8), f32(rng, 3, 8), axis=0)
cases.op("epsilon", "LayerNormalization", f32(rng, 4, 8), f32(rng, 8), f32(rng, 8), epsilon=0.1)
cases.op("large_mean", "LayerNormalization", f32(rng, 4, 8) + 100, f32(rng, 8), f32(rng, 8))
one = np.random.default_rng(91)
cases.op("one_bias", "LayerNormalization", f32(one, 2, 3, 8), f32(one, 8), f32(one, 1), const=(1, 2))
cases.op("one_scale", "LayerNormalization", f32(one, 2, 3, 8), f32(one, 1), f32(one, 1), const=(1, 2))


def chain(name, nodes, feeds, constants, **rest):
    """A case of several nodes, each (operator, inputs, output, attributes)."""
    made = [helper.make_node(op, list(i), [o], name=f"n_{o}", **a) for op, i, o, a in nodes]
    cases.graph(f"chain_{name}", made, feeds, constants, **rest)


# What the fusions look for: the result must not change.
IMAGE = {"x": f32(rng, 2, 3, 8, 8)}
CONV = {"w": f32(rng, 4, 3, 3, 3), "b": f32(rng, 4)}
NORM = dict(zip(("s", "o", "m", "v"), norm_inputs(4)))
chain("conv_bn", [("Conv", "xw", "c", {}), ("BatchNormalization", "csomv", "y", {})], IMAGE, CONV | NORM)
chain("conv_bias_bn", [("Conv", "xwb", "c", {}), ("BatchNormalization", "csomv", "y", {})], IMAGE, CONV | NORM)
chain(
    "conv_bn_two_readers",
    [("Conv", "xwb", "c", {}), ("BatchNormalization", "csomv", "d", {}), ("Add", "cd", "y", {})],
    IMAGE,
    CONV | NORM,
)
chain("conv_mul", [("Conv", "xwb", "c", {}), ("Mul", "ck", "y", {})], IMAGE, CONV | {"k": f32(rng, 4, 1, 1)})
chain("conv_add", [("Conv", "xw", "c", {}), ("Add", "ck", "y", {})], IMAGE, CONV | {"k": f32(rng, 1, 4, 1, 1)})
chain("conv_add_row", [("Conv", "xw", "c", {}), ("Add", "ck", "y", {})], IMAGE, CONV | {"k": f32(rng, 6)})
chain(
    "pad_conv",
    [("Pad", "xp", "c", {}), ("Conv", "cw", "y", {})],
    IMAGE,
    CONV | {"p": i64(0, 0, 1, 2, 0, 0, 2, 1)},
)
chain(
    "pad_value_conv",
    [("Pad", "xpf", "c", {}), ("Conv", "cw", "y", {})],
    IMAGE,
    CONV | {"p": i64(0, 0, 1, 1, 0, 0, 1, 1), "f": np.float32(3)},
)
chain(
    "pad_batch_conv",
    [("Pad", "xp", "c", {}), ("Conv", "cw", "y", {})],
    IMAGE,
    CONV | {"p": i64(1, 0, 1, 1, 0, 0, 1, 1)},
)
chain(
    "pad_average_pool",
    [("Pad", "xp", "c", {}), ("AveragePool", "c", "y", {"kernel_shape": [3, 3]})],
    IMAGE,
    {"p": i64(0, 0, 1, 1, 0, 0, 1, 1)},
)
chain(
    "pad_max_pool",
    [("Pad", "xp", "c", {}), ("MaxPool", "c", "y", {"kernel_shape": [3, 3]})],
    IMAGE,
    {"p": i64(0, 0, 1, 1, 0, 0, 1, 1)},
)
chain(
    "bn_conv",
    [("BatchNormalization", "xsomv", "c", {}), ("Conv", "cw", "y", {"pads": [1, 1, 1, 1]})],
    IMAGE,
    CONV | dict(zip(("s", "o", "m", "v"), norm_inputs(3))),
)
MATRIX = {"x": f32(rng, 3, 4)}
BATCHED = {"x": f32(rng, 2, 3, 4)}
WEIGHT = {"w": f32(rng, 4, 5)}
chain("matmul_add", [("MatMul", "xw", "c", {}), ("Add", "cb", "y", {})], MATRIX, WEIGHT | {"b": f32(rng, 5)})
chain("matmul_add_left", [("MatMul", "xw", "c", {}), ("Add", "bc", "y", {})], MATRIX, WEIGHT | {"b": f32(rng, 1, 5)})
chain("matmul_add_batched", [("MatMul", "xw", "c", {}), ("Add", "cb", "y", {})], BATCHED, WEIGHT | {"b": f32(rng, 5)})
chain("matmul_add_wide", [("MatMul", "xw", "c", {}), ("Add", "cb", "y", {})], MATRIX, WEIGHT | {"b": f32(rng, 2, 3, 5)})
chain(
    "gemm_bn",
    [("Gemm", "xw", "c", {}), ("BatchNormalization", "csomv", "y", {})],
    MATRIX,
    WEIGHT | dict(zip(("s", "o", "m", "v"), norm_inputs(5))),
)
chain(
    "gemm_mul",
    [("Gemm", "xwb", "c", {"beta": 0.5}), ("Mul", "ck", "y", {})],
    MATRIX,
    WEIGHT | {"b": f32(rng, 5), "k": f32(rng, 5)},
)
chain("transpose_gemm", [("Transpose", "x", "c", {}), ("Gemm", "cw", "y", {})], {"x": f32(rng, 4, 3)}, WEIGHT)
chain("dropout_identity", [("Identity", "x", "c", {}), ("Dropout", "c", "d", {}), ("Relu", "d", "y", {})], MATRIX, {})
chain("relu_clip", [("Relu", "x", "c", {}), ("Clip", ["c", "", "h"], "y", {})], MATRIX, {"h": np.float32(0.5)})
chain(
    "clip_clip",
    [("Clip", "xlh", "c", {}), ("Clip", "cmk", "y", {})],
    MATRIX,
    {"l": np.float32(-1), "h": np.float32(0.2), "m": np.float32(-0.3), "k": np.float32(2)},
)
