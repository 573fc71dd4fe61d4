"""Bugs that were found by hand, one case each."""

import numpy as np
import onnx
import small
from small import node
from support import run_onnx


def test_a_shared_weight_fits_the_bias_of_every_layer(compress, tmp_path):
    """The second bias is large: under the scale that suits the first layer it would overflow INT32."""
    model = small.model(
        [node("Conv", "x w b1", "a"), node("Relu", "a", "r"), node("Conv", "r w b2", "y")],
        [("x", ["n", 2, 4, 4])],
        [("y", ["n", 2, 4, 4])],
        {
            "w": small.floats(1, 2, 2, 1, 1, scale=1e-6),
            "b1": np.zeros(2, np.float32),
            "b2": np.array([50, -50], np.float32),
        },
    )
    path, output = small.save(model, tmp_path), tmp_path / "out.onnx"
    compress(path, "--int8", "-o", output)
    x = {"x": small.floats(2, 3, 2, 4, 4)}
    expected, got = run_onnx(path, x)[0], run_onnx(output, x)[0]
    assert np.abs(expected - got).max() < 0.5


def test_a_gemm_with_one_bias_for_all_channels_is_quantised(compress, tmp_path):
    weights = {"w": small.floats(1, 8, 5), "b": np.float32(0.5)}
    model = small.model([node("Gemm", "x w b", "y")], [("x", ["n", 8])], [("y", ["n", 5])], weights)
    report = compress(small.save(model, tmp_path), "--int8", "--json").json()
    assert [layer["precision"] for layer in report["layers"]] == ["int8"]
    x = {"x": small.floats(2, 4, 8)}
    expected, got = run_onnx(model, x)[0], run_onnx(onnx.load(tmp_path / "model.compressed.onnx"), x)[0]
    assert np.abs(expected - got).max() < 0.05 * np.abs(expected).max()


def test_labels_that_are_no_class_are_7(compress, tmp_path):
    path, data = small.save(small.mlp(), tmp_path), tmp_path / "data.npz"
    np.savez(data, x=small.floats(1, 20, 8), y=np.full(20, 99))
    result = compress("check", path, "--against", path, "--eval", data, "--max-drop", "0%", code=7)
    assert "label 99" in result.err


def test_outputs_that_turn_nan_are_7(compress, tmp_path):
    good, bad = small.mlp(), small.mlp()
    broken = onnx.numpy_helper.to_array(bad.graph.initializer[3]) * np.float32("nan")
    bad.graph.initializer[3].CopyFrom(onnx.numpy_helper.from_array(broken, bad.graph.initializer[3].name))
    (tmp_path / "bad").mkdir()
    original, model = small.save(good, tmp_path), small.save(bad, tmp_path / "bad")
    assert "NaN" in compress("check", model, "--against", original, code=7).err


def test_a_report_is_no_more_overwritten_than_a_model(compress, tmp_path):
    path = small.save(small.mlp(), tmp_path)
    report = tmp_path / "model.compressed.report.json"
    report.write_text("mine")
    compress(path, code=6)
    assert report.read_text() == "mine" and not (tmp_path / "model.compressed.onnx").exists()
    compress(path, "--force")
    compress(path, "-o", tmp_path / "report.json", "--report", tmp_path, code=2)


def test_an_absurd_batch_is_2(compress, tmp_path):
    path = small.save(small.mlp(), tmp_path)
    compress("bench", path, "--batch", 10**12, code=2)
    compress(path, "--batch", 10**12, code=2)


def test_an_operator_that_a_newer_opset_dropped_stays_where_it_was(compress, tmp_path):
    """Clip moves to opset 11 as we write it; what BatchNormalization can say in opset 8, it can't there."""
    nodes = [
        node("Clip", "x", "c", min=0.0, max=1.0),
        node("BatchNormalization", "c s b m v", "y", spatial=0),
    ]
    weights = {k: np.ones((3, 2, 2), np.float32) for k in "sbmv"}
    shape = [2, 3, 2, 2]
    inputs = [("x", shape), *((k, shape[1:]) for k in "sbmv")]
    model = small.model(nodes, inputs, [("y", shape)], weights, opset=8, ir=3)
    compress(small.save(model, tmp_path))
    after = onnx.load(tmp_path / "model.compressed.onnx")
    assert after.opset_import[0].version == 8 and [n.op_type for n in after.graph.node] == [n.op_type for n in nodes]


def test_zeros_between_taps_that_dilation_can_not_hold(compress, tmp_path):
    """Half of 2^31 from tap to tap: twice as far is more than 32 bits count."""
    weight = small.floats(1, 4, 4, 5)
    weight[:, :, 1::2] = 0
    model = small.model(
        [node("Conv", "x w", "y", dilations=[2**30])], [("x", ["N", 4, "L"])], [("y", None)], {"w": weight}
    )
    compress(small.save(model, tmp_path), "--check", "none")
    [conv] = onnx.load(tmp_path / "model.compressed.onnx").graph.node
    assert [list(a.ints) for a in conv.attribute if a.name == "dilations"] == [[2**30]]
