"""INT8 of recurrent layers: an operator of ONNX Runtime for LSTM, and weights that are stored as codes for others."""

import numpy as np
import onnx
import pytest
import small
from onnx import TensorProto
from small import floats, node
from support import run_onnx, sqnr_db, tried

LENGTH, INPUTS, HIDDEN = 12, 24, 256


def network(op):
    """A layer that reads in both directions, and a product of what it makes of each element."""
    gates = {"LSTM": 4, "GRU": 3}[op]
    weights = {
        "W": floats(1, 2, gates * HIDDEN, INPUTS, scale=0.3),
        "R": floats(2, 2, gates * HIDDEN, HIDDEN, scale=0.1),
        "B": floats(3, 2, 2 * gates * HIDDEN, scale=0.1),
        "w": floats(4, 2 * HIDDEN, 8, scale=0.2),
        "shape": np.array([0, 0, -1]),
    }
    nodes = [
        node("Transpose", "x", "t", perm=[1, 0, 2]),
        node(op, "t W R B", "s", "layer", hidden_size=HIDDEN, direction="bidirectional"),
        node("Transpose", "s", "u", perm=[2, 0, 1, 3]),
        node("Reshape", "u shape", "v"),
        node("MatMul", "v w", "y", "head"),
    ]
    return small.model(nodes, [("x", ["n", LENGTH, INPUTS])], [("y", ["n", LENGTH, 8])], weights)


@pytest.fixture
def made(compress, tmp_path):
    """Compresses a network: the file, its size in parts of the original's, its report, its SQNR in ONNX Runtime and ours."""
    np.savez(tmp_path / "data.npz", x=floats(5, 200, LENGTH, INPUTS))

    def make(op, *flags):
        path, out = small.save(network(op), tmp_path), tmp_path / "out.onnx"
        report = compress(path, "--int8", "--data", tmp_path / "data.npz", "-o", out, "--force", "--json", *flags).json()
        x = floats(6, 1, LENGTH, INPUTS)
        before, after = run_onnx(path, {"x": x})[0], run_onnx(out, {"x": x}, optimise=True)[0]
        size = out.stat().st_size / path.stat().st_size
        return onnx.load(out), size, report, sqnr_db(before, after)

    return make


def layer(model):
    return next(n for n in model.graph.node if n.name == "layer")


@pytest.mark.parametrize("flags", [("--effort", "quick"), ()], ids=["quick", "normal"])
def test_onnx_runtime_computes_lstm_by_codes(made, flags):
    model, size, report, db = made("LSTM", "--target", "onnxruntime", *flags)
    node = layer(model)
    assert (node.domain, node.op_type) == ("com.microsoft", "DynamicQuantizeLSTM")
    assert {t.data_type for t in model.graph.initializer if t.name in node.input[1:3]} == {TensorProto.INT8}
    assert size < 0.35 and db > 30
    covered = next(c for c in report["coverage"] if c["request"] == "int8")
    assert (covered["layers"], covered["of_layers"], covered["macs"]) == (2, 2, 1.0) and report["undone"] == []
    # Our runtime computes the same codes.
    assert abs(report["accuracy"]["outputs"][0]["sqnr_db"] - db) < 3


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_weights_of_other_recurrent_layers_are_stored_as_codes(made, op):
    model, size, report, db = made(op)
    node = layer(model)
    assert (node.domain, node.op_type) == ("", op)
    assert size < 0.35 and db > 30
    # Those of the input may be left in 16 bits.
    assert any(n.op_type == "Cast" and n.input[0] == "R" for n in model.graph.node)
    assert [o.domain for o in model.opset_import] == [""]
    assert "ONNX has no operator for it by codes" in report["undone"][0]


def test_a_layer_that_is_excluded_stays_as_it_is(made):
    model, size, *_ = made("LSTM", "--target", "onnxruntime", "--exclude", "^layer$", "--effort", "quick")
    assert layer(model).op_type == "LSTM" and size > 0.4


def test_a_goal_that_codes_miss_keeps_the_layer_in_floats(made):
    model, _, report, db = made("LSTM", "--target", "onnxruntime", "--min-sqnr", "55", "--exclude", "^head$")
    assert layer(model).op_type == "LSTM" and db > 55
    assert any(t["name"] == "recurrent" and t["kept"] for t in tried(report))
