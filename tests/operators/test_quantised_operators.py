"""QLinearConv, QLinearAdd and the others that ONNX Runtime's quantiser writes as QOperator: read as what they mean."""

import numpy as np
import onnx
import pytest
import small
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from small import node
from support import run_onnx

FLOATS = {
    "Conv", "MatMul", "Gemm", "Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "Sigmoid", "LeakyRelu", "Softmax",
}  # fmt: skip


class Noise(CalibrationDataReader):
    """The samples on which the quantiser looks for ranges."""

    def __init__(self, samples):
        self.samples = iter([{"x": sample[None]} for sample in samples])

    def get_next(self):
        return next(self.samples, None)


def network():
    """One of each operator that the quantiser knows."""
    return small.model(
        [
            node("Conv", "x w1 b1", "a", pads=[1, 1, 1, 1]),
            node("LeakyRelu", "a", "l", alpha=0.1),
            node("Conv", "l w2 b2", "c", pads=[1, 1, 1, 1]),
            node("Add", "c l", "s"),
            node("Sigmoid", "s", "g"),
            node("Mul", "s g", "m"),
            node("Concat", "m l", "j", axis=1),
            node("AveragePool", "j", "p", kernel_shape=[2, 2], strides=[2, 2]),
            node("GlobalAveragePool", "p", "q"),
            node("Flatten", "q", "f"),
            node("Gemm", "f w3 b3", "h", transB=1),
            node("MatMul", "h w4", "y"),
        ],
        [("x", ["n", 3, 8, 8])],
        [("y", ["n", 4])],
        {
            "w1": small.floats(1, 6, 3, 3, 3),
            "b1": small.floats(2, 6),
            "w2": small.floats(3, 6, 6, 3, 3),
            "b2": small.floats(4, 6),
            "w3": small.floats(5, 5, 12),
            "b3": small.floats(6, 5),
            "w4": small.floats(7, 5, 4),
        },
    )


@pytest.mark.parametrize("weights", [QuantType.QInt8, QuantType.QUInt8], ids=["s8", "u8"])
@pytest.mark.parametrize("channels", [False, True], ids=["tensor", "channel"])
def test_what_the_quantiser_writes_runs(compress, tmp_path, weights, channels):
    """It runs here, and what comes out for ONNX Runtime differs by steps of rounding at most."""
    source, path, output = small.save(network(), tmp_path), tmp_path / "q.onnx", tmp_path / "out.onnx"
    data = small.floats(9, 16, 3, 8, 8)
    # Weights of 7 bits: ONNX Runtime's sums saturate on processors without VNNI.
    quantize_static(
        source, path, Noise(data), quant_format=QuantFormat.QOperator, per_channel=channels,
        activation_type=QuantType.QUInt8, weight_type=weights, reduce_range=True,
    )  # fmt: skip
    written = set(small.ops(path))
    assert {"QLinearConv", "QLinearAdd", "QLinearMul", "QLinearConcat", "QLinearLeakyRelu", "QLinearSigmoid"} <= written
    assert {"QGemm", "QLinearMatMul", "QLinearGlobalAveragePool", "QLinearAveragePool"} <= written
    np.savez(tmp_path / "data.npz", x=data)
    report = compress(path, "-o", output, "--eval", tmp_path / "data.npz", "--json").json()
    assert report["accuracy"]["sqnr_db"] is None or report["accuracy"]["sqnr_db"] > 40
    onnx.checker.check_model(str(output), full_check=True)
    assert not {n.domain for n in onnx.load(output).graph.node} & {"com.microsoft"}
    (before,) = run_onnx(path, {"x": data}, optimise=True)
    for optimise in (False, True):
        (after,) = run_onnx(output, {"x": data}, optimise=optimise)
        steps = np.abs(after - before) / np.diff(np.unique(before)).min()
        assert steps.max() <= 2.001, steps.max()


def lone(op, inputs, constants, domain="com.microsoft", rank=2, **attributes):
    """One operator on codes."""
    made = helper.make_node(op, inputs, ["y"], name="the_node", domain=domain, **attributes)
    graph = helper.make_graph(
        [made],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [None] * rank)],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    imports = [helper.make_opsetid("", 11), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


S, Z, T, U = np.float32(0.02), np.uint8(131), np.float32(0.03), np.uint8(7)
PARAMETERS = {"s": S, "z": Z, "t": T, "u": U}


@pytest.mark.parametrize(
    ("op", "inputs", "rank", "attributes", "stays"),
    [
        ("QLinearSigmoid", "x s z t u", 2, {}, False),
        ("QLinearAveragePool", "x s z t u", 4, {"kernel_shape": [2, 2], "channels_last": 1}, True),
        ("QLinearSigmoid", "x s z t", 2, {}, True),
        ("QLinearSoftmax", "x s z t u", 2, {"opset": 11, "axis": 1}, True),
        ("QLinearSoftmax", "x s z t u", 2, {"opset": 13, "axis": 1}, False),
        ("QLinearReduceMean", "x s z t u", 2, {"axes": [1]}, True),
    ],
)
def test_what_has_no_such_meaning_stays(compress, tmp_path, op, inputs, rank, attributes, stays):
    """Channels last, the softmax of old, and a result whose type is not given are left as they came."""
    used = {k: v for k, v in PARAMETERS.items() if k in inputs.split()}
    path, output = small.save(lone(op, inputs.split(), used, rank=rank, **attributes), tmp_path), tmp_path / "out.onnx"
    compress(path, "-o", output, "--quiet")
    names = small.ops(output)
    assert names == [op] if stays else names == ["DequantizeLinear", op.removeprefix("QLinear"), "QuantizeLinear"]


def test_names_and_words_survive(compress, tmp_path):
    """The operator keeps its name and documentation, its result its name."""
    made = lone("QLinearLeakyRelu", ["x", "s", "z", "t", "u"], PARAMETERS, alpha=0.25)
    made.graph.node[0].doc_string = "mind the gap"
    path, output = small.save(made, tmp_path), tmp_path / "out.onnx"
    compress(path, "-o", output, "--quiet")
    relu = next(n for n in onnx.load(output).graph.node if n.op_type == "LeakyRelu")
    assert (relu.name, relu.doc_string, relu.attribute[0].f) == ("the_node", "mind the gap", 0.25)
    x = np.arange(256, dtype=np.uint8).reshape(4, 64)
    np.testing.assert_array_equal(run_onnx(output, {"x": x})[0], run_onnx(path, {"x": x})[0])
