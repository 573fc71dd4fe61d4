"""Models that are simplified although nothing can be measured: a kernel is missing, no data fits,
or there is nothing to feed. They come through, and the report says what was not measured."""

import numpy as np
import onnx
import pytest
import small
from onnx import TensorProto
from small import node
from support import assert_close, listing, run_onnx

DOUBLE = TensorProto.DOUBLE


def conv_3d():
    nodes = [node("Conv", "x w", "c"), node("Identity", "c", "y")]
    return small.model(nodes, [("x", [1, 2, 5, 6, 7])], [("y", None)], {"w": small.floats(1, 3, 2, 3, 3, 3)})


def doubles():
    nodes = [node("MatMul", "x w", "m"), node("Identity", "m", "i"), node("Add", "i b", "y")]
    weights = {"w": small.floats(1, 4, 3).astype(np.float64), "b": small.floats(2, 3).astype(np.float64)}
    return small.model(nodes, [("x", ["n", 4], DOUBLE)], [("y", ["n", 3], DOUBLE)], weights)


def unranked():
    return small.model([node("Identity", "x", "i"), node("Relu", "i", "y")], [("x", None)], [("y", None)])


def no_inputs():
    return small.model(
        [node("Identity", "c", "i"), node("Relu", "i", "y")], [], [("y", [4])], {"c": small.floats(1, 4)}
    )


def empty_batch():
    return small.model([node("Identity", "x", "i"), node("Relu", "i", "y")], [("x", [0, 3])], [("y", [0, 3])])


def open_pictures():
    nodes = [node("Conv", "x w", "c"), node("MaxPool", "c", "p", kernel_shape=[3, 3]), node("Identity", "p", "y")]
    ends = [("x", ["n", 3, "h", "w"])], [("y", ["n", 4, "ho", "wo"])]
    return small.model(nodes, *ends, {"w": small.floats(1, 4, 3, 3, 3)})


def indices():
    """Zeros, the only made-up indices, are in range; a table of none has no such entry."""
    nodes = [node("Gather", "t x", "g"), node("Identity", "g", "y")]
    return small.model(nodes, [("x", ["n"], TensorProto.INT64)], [("y", None)], {"t": np.zeros((0, 2), np.float32)})


def whole_numbers():
    nodes = [node("MatMul", "x w", "m"), node("Identity", "m", "y")]
    kind = TensorProto.INT32
    return small.model(nodes, [("x", ["n", 4], kind)], [("y", ["n", 3], kind)], {"w": np.ones((4, 3), np.int32)})


MODELS = {
    "conv_3d": (conv_3d, [1, 2, 5, 6, 7]),
    "doubles": (doubles, [3, 4]),
    "unranked": (unranked, [2, 3, 4]),
    "no_inputs": (no_inputs, None),
    "empty_batch": (empty_batch, [0, 3]),
    "open_pictures": (open_pictures, [2, 3, 9, 11]),
    "indices": (indices, [0]),
    "whole_numbers": (whole_numbers, [2, 4]),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_cannot_be_measured_is_still_simplified(compress, tmp_path, name):
    make, shape = MODELS[name]
    path, output = small.save(make(), tmp_path), tmp_path / "model.compressed.onnx"
    report = compress(path, "--json").json()
    # A model without inputs folds to one constant, which the output takes through an Identity.
    assert small.ops(output) == ["Identity"] if name == "no_inputs" else "Identity" not in small.ops(output)
    assert report["accuracy"] or any("measured" in w for w in report["warnings"])
    feeds = {}
    if shape is not None:
        kind = onnx.helper.tensor_dtype_to_np_dtype(make().graph.input[0].type.tensor_type.elem_type)
        feeds = {"x": (small.floats(5, *shape) * 9).astype(kind)}
    assert_close(run_onnx(output, feeds), run_onnx(path, feeds))


@pytest.mark.parametrize("op", ["Bernoulli", "RandomNormalLike"])
def test_missing_kernels_are_5_where_the_model_must_run(compress, tmp_path, op):
    """What these make is left to chance."""
    made = small.model([node("Identity", "x", "i"), node(op, "i", "y")], [("x", [2, 3])], [("y", [2, 3])])
    path = small.save(made, tmp_path)
    before = listing(tmp_path)
    for args in (["bench", path], ["check", path, "--against", path]):
        said = compress(*args, code=5).err
        assert "model.onnx" in said and "node" in said
    assert listing(tmp_path) == before


def test_made_up_pictures_are_as_large_as_pictures(compress, tmp_path):
    path = small.save(open_pictures(), tmp_path)
    report = compress("check", path, "--against", path, "--json").json()
    assert report["speed"]["inputs"] == "x 1x3x224x224"
    shaped = compress("check", path, "--against", path, "--shape", "x=1x3x32x48", "--json").json()
    assert shaped["speed"]["inputs"] == "x 1x3x32x48" and shaped["output"]["macs"] == 4 * 27 * 30 * 46
    for wrong in ("x=1x4x32x32", "x=3x32", "z=1x3x8x8", "x=1x3x0x8", "x"):
        compress("check", path, "--against", path, "--shape", wrong, code=2)


def fixed_pictures():
    """Pictures of any size, as it says; what reads them takes but one."""
    nodes = [node("Relu", "x", "r"), node("Reshape", "r shape", "f"), node("MatMul", "f w", "y")]
    ends = [("x", ["n", 3, "h", "w"])], [("y", [None, 4])]
    return small.model(nodes, *ends, {"shape": np.int64([1, 297]), "w": small.floats(1, 297, 4)})


def test_made_up_inputs_that_do_not_suit_ask_for_data(compress, tmp_path):
    """No size that is tried suits: the model is fine."""
    path, data = small.save(fixed_pictures(), tmp_path), tmp_path / "data.npz"
    np.savez(data, x=small.floats(1, 1, 3, 9, 11))
    for args in (["bench", path, "--runs", "1"], ["check", path, "--against", path]):
        said = compress(*args, code=7).err
        assert "made-up inputs" in said and "--data" in said and "node" in said
        compress(*args, "--data", data)


def test_long_chains_need_no_stack(compress, tmp_path):
    """Twenty thousand nodes in a row."""
    nodes = [node("Add", f"x{i} b", f"x{i + 1}") for i in range(20_000)]
    made = small.model(nodes, [("x0", [2])], [("x20000", [2])], {"b": np.float32([1, -1])})
    path = small.save(made, tmp_path)
    compress(path, "--prune", "0.1")
    x = small.floats(1, 2)
    assert_close(run_onnx(tmp_path / "model.compressed.onnx", {"x0": x}), run_onnx(path, {"x0": x}), 1e-3)


@pytest.mark.parametrize("op", ["Expand", "ConstantOfShape", "Pad", "Range"])
def test_folding_never_blows_a_file_up(compress, tmp_path, op):
    """What is cheap to compute and large to store is computed when the model runs."""
    start = {
        "Expand": [node("Expand", "one size", "big")],
        "ConstantOfShape": [node("ConstantOfShape", "size", "big")],
        "Pad": [node("Pad", "one border", "big")],
        "Range": [node("Range", "from to step", "r"), node("Reshape", "r size", "big")],
    }[op]
    weights = {
        "one": np.ones((1, 1), np.float32),
        "size": np.array([500, 1000], np.int64),
        "border": np.array([499, 999, 0, 0], np.int64),
        "from": np.float32(0),
        "to": np.float32(5e5),
        "step": np.float32(1),
    }
    used = {i for n in start for i in n.input}
    made = small.model(
        [*start, node("Add", "x big", "y")],
        [("x", [1, 1000])],
        [("y", [500, 1000])],
        {k: v for k, v in weights.items() if k in used},
    )
    path = small.save(made, tmp_path)
    compress(path)
    output = tmp_path / "model.compressed.onnx"
    assert output.stat().st_size < 10_000
    x = small.floats(1, 1, 1000)
    assert_close(run_onnx(output, {"x": x}), run_onnx(path, {"x": x}))
