"""How much layers mind INT8, zeros and the loss of channels, beside what ONNX Runtime makes of the same changes."""

import numpy as np
import onnx
import pytest
import small
from onnx import TensorProto, helper, numpy_helper
from small import floats, node
from support import ROOT, run_onnx

MODEL = ROOT / "models/digits/digits.onnx"
TRAIN = ROOT / "models/digits/train.npz"


@pytest.fixture
def measured(compress, tmp_path):
    """The figures of the digits model."""
    args = ["sensitivity", MODEL, "--data", TRAIN, "-o", tmp_path / "plot.svg", "--json"]
    return compress(*args).json()


@pytest.fixture
def simplified(compress, tmp_path):
    """The model as the figures are of."""
    compress(MODEL, "--no-check", "-q", "-o", tmp_path / "simple.onnx")
    return onnx.load(tmp_path / "simple.onnx")


def typical(before, after):
    """Signal to noise of a typical sample."""
    before, after = before.astype(float), after.astype(float)
    noise = ((before - after) ** 2).sum(1) / (before**2).sum(1)
    return -10 * np.log10(np.exp(np.log(np.clip(noise, 1e-8, 1)).mean()))


def answers(model):
    return run_onnx(model, {"input": np.load(TRAIN)["x"]})[0]


def initializer(model, name):
    return next(t for t in model.graph.initializer if t.name == name)


def test_zeros_are_those_of_one_layer(measured, simplified):
    before = answers(simplified)
    layer = next(x for x in measured["layers"] if x["node"] == "/conv3/Conv")
    stored = initializer(simplified, "conv3.weight")
    weight = numpy_helper.to_array(stored)
    for zeros in layer["zeros"]:
        pruned = weight.copy()
        pruned[np.abs(pruned) <= np.sort(np.abs(pruned).ravel())[round(zeros["fraction"] * pruned.size) - 1]] = 0
        stored.CopyFrom(numpy_helper.from_array(pruned, stored.name))
        assert zeros["typical_db"] == pytest.approx(typical(before, answers(simplified)), abs=3)
    assert [z["fraction"] for z in layer["zeros"]] == [0.5, 0.8, 0.9]


def test_the_noise_of_a_weight_is_that_of_its_codes(measured, simplified):
    before = answers(simplified)
    (value,) = [v for v in measured["values"] if v["name"] == "conv2.weight"]
    assert value["is_weight"]
    stored = initializer(simplified, "conv2.weight")
    weight = numpy_helper.to_array(stored)
    assert value["range"] == pytest.approx([weight.min(), weight.max()])
    scale = np.abs(weight).max((1, 2, 3), keepdims=True) / 127
    stored.CopyFrom(numpy_helper.from_array(np.round(weight / scale) * scale, stored.name))
    assert value["typical_db"] == pytest.approx(typical(before, answers(simplified)), abs=2)


def test_the_noise_of_an_activation_is_that_of_its_codes(measured, simplified):
    before = answers(simplified)
    (value,) = [v for v in measured["values"] if v["name"] == "/relu1/Relu_output_0"]
    low, high = value["range"]
    scale = np.float32((high - low) / 255)
    assert not value["is_weight"] and low == 0
    graph = simplified.graph
    graph.initializer.append(numpy_helper.from_array(scale, "s"))
    graph.initializer.append(numpy_helper.from_array(np.uint8(0), "z"))
    for reader in graph.node:
        reader.input[:] = ["coded" if name == value["name"] else name for name in reader.input]
    pair = [helper.make_node("QuantizeLinear", [value["name"], "s", "z"], ["codes"])]
    pair.append(helper.make_node("DequantizeLinear", ["codes", "s", "z"], ["coded"]))
    place = next(i for i, n in enumerate(graph.node) if value["name"] in n.output)
    for new in reversed(pair):
        graph.node.insert(place + 1, new)
    assert value["typical_db"] == pytest.approx(typical(before, answers(simplified)), abs=2)


def test_the_curve_begins_with_all_layers_and_ends_with_none(measured):
    curve = measured["curve"]
    first, last = curve[0], curve[-1]
    assert first["float_layers"] == 0 and last["float_layers"] == len(measured["layers"]) == 4
    assert first["predicted_db"] == pytest.approx(first["measured"]["typical_db"], abs=2)
    assert last["predicted_db"] is None and last["predicted_speedup"] == pytest.approx(1)
    predicted = [p["predicted_db"] for p in curve[:-1]]
    assert predicted == sorted(predicted)
    worst = min(measured["layers"], key=lambda x: x["int8"]["typical_db"])
    assert worst["int8"]["typical_db"] > first["predicted_db"]


def test_channels_are_those_that_go_together(measured):
    groups = {tuple(g["nodes"]): g for g in measured["channels"]}
    assert set(groups) == {("/conv1/Conv",), ("/conv2/Conv",), ("/conv3/Conv",)}
    quarter, half = groups["/conv2/Conv",]["cut"]
    assert (quarter["fraction"], half["fraction"]) == (0.25, 0.5)
    assert quarter["typical_db"] > half["typical_db"]


def test_a_table_and_a_plot_are_for_people(compress, tmp_path):
    model = tmp_path / "digits.onnx"
    model.write_bytes(MODEL.read_bytes())
    table = compress("sensitivity", model, "--data", TRAIN).out
    for text in ("/conv1/Conv", "INT8", "90% zero", "50% cut", "conv3.weight", "in floats", "plot: "):
        assert text in table
    plot = (tmp_path / "digits.sensitivity.svg").read_text()
    assert plot.startswith("<svg") and "half of the channels" in plot and "measured" in plot
    again = compress("sensitivity", model, "--data", TRAIN, code=6)
    assert "exists already" in again.err
    compress("sensitivity", model, "--data", TRAIN, "--force", "-q")
    assert "would replace the model" in compress("sensitivity", model, "--data", TRAIN, "-o", model, code=2).err


def test_a_layer_that_is_excluded_has_no_figure(compress, tmp_path):
    args = ["sensitivity", MODEL, "--data", TRAIN, "-o", tmp_path / "p.svg", "--exclude", "conv2", "--json"]
    (layer,) = [x for x in compress(*args).json()["layers"] if x["node"] == "/conv2/Conv"]
    assert layer["int8"] is None and "excluded" in layer["int8_obstacle"] and layer["zeros"] == []


def test_what_it_needs_is_said(compress, tmp_path):
    assert "--data" in compress("sensitivity", MODEL, code=2).err
    quantised = tmp_path / "int8.onnx"
    compress(MODEL, "--int8", "--effort", "quick", "--data", TRAIN, "--no-check", "-q", "-o", quantised)
    refused = compress("sensitivity", quantised, "--data", TRAIN, code=5).err
    assert "quantised already" in refused and str(quantised) in refused


@pytest.fixture
def data(tmp_path):
    """Samples for the small models below."""
    np.savez(tmp_path / "x.npz", x=floats(0, 200, 12))
    return tmp_path / "x.npz"


def test_an_output_beside_one_of_a_sigmoid_counts(compress, tmp_path, data):
    """Where a function of a bounded range makes one output, the noise of the others is that of themselves."""
    nodes = [node("MatMul", "x w1", "s", "score"), node("Sigmoid", "s", "y"), node("MatMul", "x w2", "z", "box")]
    weights = {"w1": floats(1, 12, 4), "w2": floats(2, 12, 4)}
    model = small.model(nodes, [("x", ["n", 12])], [("y", ["n", 4]), ("z", ["n", 4])], weights)
    args = ["sensitivity", small.save(model, tmp_path), "--data", data, "--json"]
    layers = {x["node"]: x for x in compress(*args).json()["layers"]}
    assert all(z["typical_db"] < 40 for name in ("score", "box") for z in layers[name]["zeros"])


def test_outputs_that_are_no_floats_are_refused(compress, tmp_path, data):
    nodes = [node("MatMul", "x w", "s"), node("ArgMax", "s", "y", axis=1)]
    outputs = [("y", ["n", 1], TensorProto.INT64)]
    model = small.model(nodes, [("x", ["n", 12])], outputs, {"w": floats(1, 12, 4)})
    assert "no output is of floats" in compress("sensitivity", small.save(model, tmp_path), "--data", data, code=5).err


def test_layers_of_one_name_are_apart(compress, tmp_path, data):
    nodes = [node("Gemm", "x w1", "a", "same"), node("Relu", "a", "r"), node("Gemm", "r w2", "b", "same")]
    nodes += [node("Relu", "b", "q"), node("Gemm", "q w3", "y", "last")]
    weights = {"w1": floats(1, 12, 32), "w2": floats(2, 32, 16), "w3": floats(3, 16, 4)}
    model = small.model(nodes, [("x", ["n", 12])], [("y", ["n", 4])], weights)
    found = compress("sensitivity", small.save(model, tmp_path), "--data", data, "--json").json()
    first, second, _ = found["layers"]
    assert [found["channels"][x["channels"]]["channels"] for x in (first, second)] == [32, 16]


def test_files_of_the_job_are_not_replaced(compress, tmp_path, data):
    model = small.save(small.mlp(), tmp_path)
    before = data.read_bytes()
    said = compress("sensitivity", model, "--data", data, "-o", data, "--force", code=2).err
    assert "replace the data" in said and data.read_bytes() == before
    said = compress(model, "--int8", "--data", data, "-o", data, "--force", code=2).err
    assert "a file that the job reads" in said and data.read_bytes() == before
    assert (
        "folder is not there" in compress("sensitivity", model, "--data", data, "-o", tmp_path / "no/p.svg", code=6).err
    )
    assert "a plot is a file" in compress("sensitivity", model, "--data", data, "-o", "-", code=2).err


def test_a_target_that_differs_in_codes_alone_needs_them(compress, tmp_path):
    model = small.save(small.mlp(), tmp_path)
    assert "--target tensorrt needs --int8" in compress(model, "--target", "tensorrt", code=2).err
