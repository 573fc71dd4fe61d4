"""INT8 of recurrent layers: an operator of ONNX Runtime for LSTM, and weights that are stored as codes for others."""

import numpy as np
import onnx
import pytest
import small
from onnx import TensorProto, helper, numpy_helper
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
        report = compress(
            path, "--int8", "--data", tmp_path / "data.npz", "-o", out, "--force", "--json", *flags
        ).json()
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
    # Our runtime makes the same weights of the codes.
    assert abs(report["accuracy"]["outputs"][0]["sqnr_db"] - db) < 3


@pytest.mark.parametrize("target", ["portable", "onnxruntime"])
def test_a_layer_that_is_excluded_stays_as_it_is(made, target):
    model, _, report, _ = made("LSTM", "--target", target, "--exclude", "^layer$", "--effort", "quick")
    kept = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    weights = {t.name: numpy_helper.to_array(t) for t in network("LSTM").graph.initializer}
    assert layer(model).op_type == "LSTM" and all(np.array_equal(kept[w], weights[w]) for w in "WR")
    left = next(c for c in report["coverage"] if c["request"] == "int8")["left"]
    assert [item["reason"] for item in left if item["op"] == "LSTM"] == ["excluded by --exclude"]


def test_a_goal_that_codes_miss_keeps_the_layer_in_floats(made):
    model, _, report, db = made("LSTM", "--target", "onnxruntime", "--min-sqnr", "55", "--exclude", "^head$")
    assert layer(model).op_type == "LSTM" and db > 55
    assert any(t["name"] == "recurrent" and t["kept"] for t in tried(report))


def test_sizes_of_trials_are_those_of_files(made):
    *_, size, report, _ = made("LSTM", "--target", "onnxruntime")
    assert abs(tried(report)[0]["size"] - size) < 0.02


def test_a_layer_is_trained_before_it_becomes_codes(made):
    model, size, report, db = made("LSTM", "--target", "onnxruntime", "--qat", "--epochs", "1")
    assert layer(model).op_type == "DynamicQuantizeLSTM" and size < 0.35 and db > 20
    assert any(p.get("trained") for p in report["passes"])


def alone(compress, tmp_path, model, *flags):
    """Compresses a model of [12, n, 24] floats: the file and its size in parts of the original's."""
    np.savez(tmp_path / "data.npz", x=floats(5, 40, LENGTH, 1, INPUTS))
    path, out = small.save(model, tmp_path), tmp_path / "out.onnx"
    compress(path, "--int8", "--data", tmp_path / "data.npz", "-o", out, "--force", "--effort", "quick", *flags)
    return onnx.load(out), out.stat().st_size / path.stat().st_size


def sequence(nodes, output, dtype=np.float32, x=(LENGTH, 1, INPUTS)):
    weights = {
        "W": floats(1, 1, 4 * HIDDEN, INPUTS, scale=0.3).astype(dtype),
        "R": floats(2, 1, 4 * HIDDEN, HIDDEN, scale=0.1).astype(dtype),
        "V": floats(3, 1, 4 * HIDDEN, HIDDEN, scale=0.1).astype(dtype),
    }
    used = {name for n in nodes for name in n.input}
    weights = {name: w for name, w in weights.items() if name in used}
    kind = {np.float32: TensorProto.FLOAT, np.float16: TensorProto.FLOAT16}[dtype]
    return small.model(nodes, [("x", list(x), kind)], [(output, None, kind)], weights)


def test_weights_are_stored_where_nothing_else_is_quantised(compress, tmp_path):
    _, size = alone(compress, tmp_path, sequence([node("LSTM", "x W R", "y", "layer", hidden_size=HIDDEN)], "y"))
    assert size < 0.55


def test_layers_share_the_codes_of_a_weight(compress, tmp_path):
    two = [
        node("LSTM", "x W R", "y", "first", hidden_size=HIDDEN),
        node("Squeeze", "y", "s", axes=[1]),
        node("LSTM", "s V R", "z", "second", hidden_size=HIDDEN),
    ]
    model = sequence(two, "z")
    model.opset_import[0].version = 12
    model, size = alone(compress, tmp_path, model, "--target", "onnxruntime")
    first, second = (n for n in model.graph.node if n.op_type == "DynamicQuantizeLSTM")
    assert first.input[2] == second.input[2] and size < 0.3


def test_a_model_of_16_bits_gets_codes_too(compress, tmp_path):
    one = [node("LSTM", "x W R", "y", "layer", hidden_size=HIDDEN)]
    model, size = alone(compress, tmp_path, sequence(one, "y", np.float16), "--target", "onnxruntime")
    assert size < 0.6 and any(n.op_type == "DynamicQuantizeLSTM" for n in model.graph.node)


@pytest.mark.parametrize("states", [None, (1, 2, HIDDEN), (1, 1, HIDDEN + 1)])
def test_data_that_doesn_t_fit_the_weights_is_refused(compress, tmp_path, states):
    """Sizes that only data tells: neither the graph nor its inputs say that they don't fit."""
    names = "x W R" if states is None else "x W R   h"
    one = [node("LSTM", names, "y", "layer", hidden_size=HIDDEN)]
    model = sequence(one, "y", x=("l", "n", "i"))
    width = INPUTS + 1 if states is None else INPUTS
    arrays = {"x": floats(5, 3, LENGTH, 1, width)}
    if states:
        arrays["h"] = floats(6, 3, *states)
        model.graph.input.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, ["a", "b", "c"]))
    np.savez(tmp_path / "data.npz", **arrays)
    path = small.save(model, tmp_path)
    done = compress("bench", path, "--data", tmp_path / "data.npz", code=7)
    assert "can't take these samples" in done.err and "layer" in done.err and "has shape" in done.err
