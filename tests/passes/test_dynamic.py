"""Dynamic INT8: codes by the range of each run, without calibration."""

import json

import numpy as np
import onnx
import openvino
import pytest
import small
from onnx import TensorProto, helper
from small import floats, node
from support import run_onnx, session, sqnr_db

LENGTH, WIDTH = 10, 32


def block():
    """Attention with one head, and the layers behind it."""
    names = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "up": (WIDTH, 96), "down": (96, WIDTH)}
    weights = {f"w_{name}": floats(i, *shape, scale=shape[0] ** -0.5) for i, (name, shape) in enumerate(names.items())}
    weights |= {f"b_{name}": floats(10 + i, shape[1], scale=0.1) for i, (name, shape) in enumerate(names.items())}
    weights |= {
        "root": np.float32(WIDTH**0.5),
        "two": np.float32(2**0.5),
        "one": np.float32(1),
        "half": np.float32(0.5),
    }

    def layer(x, name):
        return [
            node("MatMul", f"{x} w_{name}", f"p_{name}", name),
            node("Add", f"p_{name} b_{name}", name, f"{name}_bias"),
        ]

    nodes = [
        *(n for name in "qkv" for n in layer("x", name)),
        node("Transpose", "k", "k_turned", perm=[0, 2, 1]),
        node("MatMul", "q k_turned", "scores"),
        node("Div", "scores root", "scaled"),
        node("Softmax", "scaled", "weights"),
        node("MatMul", "weights v", "attended"),
        node("Add", "attended x", "sum"),
        *layer("sum", "up"),
        node("Div", "up two", "d"),
        node("Erf", "d", "e"),
        node("Add", "e one", "e1"),
        node("Mul", "up e1", "g2"),
        node("Mul", "g2 half", "g"),
        *layer("g", "down"),
        node("Add", "down sum", "y"),
    ]
    return small.model(nodes, [("x", ["n", LENGTH, WIDTH])], [("y", ["n", LENGTH, WIDTH])], weights)


@pytest.fixture
def quantised(compress, tmp_path):
    """Quantises a model by these flags: its path, that of the result, and the report."""

    def make(model, *flags, way="--int8=dynamic", **rest):
        path, out = small.save(model, tmp_path), tmp_path / "out.onnx"
        return path, out, compress(path, way, "-o", out, "--json", "--force", *flags, **rest).json()

    return make


def test_every_product_of_rows_becomes_one_kernel(quantised, compress, tmp_path):
    """ONNX Runtime fuses the form; all engines compute the same; products of activations stay."""
    path, out, report = quantised(block())
    assert small.ops(out).count("MatMulInteger") == 5 and small.ops(out).count("DynamicQuantizeLinear") == 3
    assert [layer["precision"] for layer in report["layers"]] == ["int8"] * 5
    (covered,) = [c for c in report["coverage"] if c["request"] == "int8"]
    assert (covered["layers"], covered["of_layers"]) == (5, 5)
    assert not any("calibrat" in line for line in report["warnings"])
    x = {"x": floats(7, 3, LENGTH, WIDTH)}
    before, plain, fused = (run_onnx(*of) for of in [(path, x), (out, x), (out, x, True)])
    assert sqnr_db(before[0], plain[0]) > 30 and sqnr_db(plain[0], fused[0]) > 50
    session(out, save=tmp_path / "fused.onnx")
    kernels = small.ops(tmp_path / "fused.onnx")
    assert kernels.count("MatMulIntegerToFloat") == 3 and kernels.count("DynamicQuantizeMatMul") == 2
    compiled = openvino.Core().compile_model(openvino.Core().read_model(str(out)), "CPU")
    assert sqnr_db(plain[0], compiled(x)[0]) > 40
    np.savez(tmp_path / "eval.npz", x=x["x"])
    check = ["check", out, "--against", path, "--data", tmp_path / "eval.npz", "--batch", 3, "--json"]
    ours = compress(*check).json()["accuracy"]["outputs"][0]["sqnr_db"]
    assert abs(ours - sqnr_db(before[0], plain[0])) < 0.1


def test_a_recipe_says_which_way(quantised, compress, tmp_path):
    """In TOML, with true for the usual way; the report repeats it, and a third way is refused."""
    path, out, report = quantised(block(), "--check", "none", "--save-recipe", tmp_path / "job.toml")
    first = out.read_bytes()
    recipe = (tmp_path / "job.toml").read_text()
    assert 'int8 = "dynamic"' in recipe and report["recipe"]["run"]["int8"] == "dynamic"
    for job in (tmp_path / "job.toml", out.with_suffix(".report.json")):
        compress("run", job, "--force", "--quiet")
        assert out.read_bytes() == first
    for value, form in [("true", "QuantizeLinear"), ("'static'", "QuantizeLinear"), ("false", "MatMul")]:
        (tmp_path / "job.toml").write_text(recipe.replace('"dynamic"', value))
        compress("run", tmp_path / "job.toml", "--force", "--quiet")
        assert form in small.ops(out) and "DynamicQuantizeLinear" not in small.ops(out)
    (tmp_path / "job.toml").write_text(recipe.replace("dynamic", "sometimes"))
    said = compress("run", tmp_path / "job.toml", "--force", code=2).err
    assert "sometimes" in said and "static, dynamic" in said


@pytest.mark.parametrize(
    "flags", [["--qat", "--data", "d.npz"], ["--calibration", "mse"], ["--effort", "quick"], ["--weights", "int4"]]
)
def test_what_is_for_calibration_is_refused(compress, tmp_path, flags):
    """Options that choose ranges say nothing beside ranges of each run."""
    path = small.save(block(), tmp_path)
    assert flags[0] in compress(path, "--int8=dynamic", *flags, code=2, cwd=tmp_path).err


def test_targets_without_it_say_so(compress, tmp_path):
    path = small.save(block(), tmp_path)
    said = compress(path, "--int8=dynamic", "--target", "tensorrt", "-o", tmp_path / "out.onnx", code=5).err
    assert "tensorrt has no kernels for codes by the range of each run" in said
    assert not (tmp_path / "out.onnx").exists()


def test_windows_stay_and_the_report_says_why(quantised):
    """A convolution by codes of their own range is slower than in floats in ONNX Runtime."""
    _, out, report = quantised(small.cnn())
    assert "DynamicQuantizeLinear" not in small.ops(out)
    assert any("0 of 3 layers are quantised" in line and "static" in line for line in report["undone"])


def test_excluded_layers_stay(quantised):
    _, out, _ = quantised(block(), "--exclude", "^(up|down)$")
    assert small.ops(out).count("MatMulInteger") == 3 and small.ops(out).count("MatMul") == 4


@pytest.mark.parametrize("bits", ["8", "4"])
@pytest.mark.parametrize("turned_first", [False, True])
def test_a_weight_may_be_read_either_way(quantised, bits, turned_first):
    """Layers share a weight as it lies and transposed: each has codes by its own outputs."""
    layers = [node("MatMul", "x w", "a", "plain"), node("Gemm", "x w", "b", "turned", transB=1)]
    shared = small.model(
        layers[::-1] if turned_first else layers,
        [("x", ["n", 40])],
        [("a", None), ("b", None)],
        {"w": floats(1, 40, 40)},
    )
    path, out, _ = quantised(shared, "--weight-bits", bits)
    assert small.ops(out).count("MatMulInteger") == 2 and small.ops(out).count("DynamicQuantizeLinear") == 1
    x = {"x": floats(2, 9, 40)}
    for before, after in zip(run_onnx(path, x), run_onnx(out, x)):
        assert sqnr_db(before, after) > (30 if bits == "8" else 14)


def test_an_excluded_layer_stays_though_it_shares_its_weight(quantised):
    shared = small.model(
        [node("MatMul", "x w", "a", "first"), node("Relu", "a", "r"), node("MatMul", "r w", "b", "second")],
        [("x", ["n", 40])],
        [("b", None)],
        {"w": floats(1, 40, 40)},
    )
    for name in ("first", "second"):
        _, out, report = quantised(shared, "--exclude", name)
        (left,) = [n for n in onnx.load(out).graph.node if n.op_type == "MatMul"]
        (covered,) = report["coverage"]
        assert left.name == name and (covered["layers"], covered["of_layers"]) == (1, 2)


def test_a_model_by_ranges_of_each_run_is_quantised_already(quantised, compress, tmp_path):
    _, out, report = quantised(block())
    assert any("share the ranges" in line for line in report["warnings"])
    for way in ("--int8=dynamic", "--int8"):
        assert "the model is quantised already" in compress(out, way, "-o", tmp_path / "again.onnx", code=5).err


def test_sums_that_older_processors_cut_off_are_counted(quantised):
    """Room is for any codes unless it is left out, and then a warning says what that costs."""
    alike = small.model(
        [node("MatMul", "x w", "y")], [("x", ["n", 40])], [("y", None)], {"w": np.full((40, 40), 0.1, np.float32)}
    )
    for flags, told in ((("--reduce-range", "never"), 1), ((), 0)):
        _, out, report = quantised(alike, *flags)
        assert sum("40 of 40 output channels" in line for line in report["warnings"]) == told
        codes = [
            onnx.numpy_helper.to_array(t) for t in onnx.load(out).graph.initializer if t.name.endswith("quantized")
        ]
        assert codes[0].max() == (127 if told else 64)


def test_branches_and_recurrent_layers_too(quantised):
    """A product in the graph of an If, with its own weight; and an LSTM where the target has an operator for it."""

    def branch(y, seed):
        weight = onnx.numpy_helper.from_array(floats(seed, 48, 64, scale=0.1), f"w{seed}")
        made = [helper.make_tensor_value_info(y, TensorProto.FLOAT, None)]
        return helper.make_graph([node("MatMul", f"last w{seed}", y, f"m{seed}")], "branch", [], made, [weight])

    nodes = [
        node("LSTM", "x W R", "s last", "layer", hidden_size=48),
        helper.make_node("If", ["c"], ["y"], then_branch=branch("t", 1), else_branch=branch("e", 2)),
    ]
    weights = {"W": floats(3, 1, 192, 24, scale=0.3), "R": floats(4, 1, 192, 48, scale=0.1)}
    inputs = [("x", [7, "n", 24]), ("c", [], TensorProto.BOOL)]
    path, out, _ = quantised(small.model(nodes, inputs, [("y", None)], weights), "--target", "onnxruntime")
    model = onnx.load(out)
    assert [n.op_type for n in model.graph.node] == ["DynamicQuantizeLSTM", "If"]
    for choice in (True, False):
        feeds = {"x": floats(5, 7, 2, 24), "c": np.array(choice)}
        assert sqnr_db(run_onnx(path, feeds)[0], run_onnx(out, feeds)[0]) > 25
    bodies = [{n.op_type for n in a.g.node} for a in model.graph.node[1].attribute]
    assert all("MatMulInteger" in ops for ops in bodies), json.dumps([sorted(ops) for ops in bodies])


def test_what_others_quantised_so_runs_in_integers(compress, tmp_path):
    """Files of ONNX Runtime's own quantiser: signed and unsigned weights, for tensors and channels."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    path, out = small.save(block(), tmp_path), tmp_path / "theirs.onnx"
    np.savez(tmp_path / "eval.npz", x=floats(7, 3, LENGTH, WIDTH))
    for kind in ("QInt8", "QUInt8"):
        for per_channel in (False, True):
            how = {"weight_type": quantization.QuantType[kind], "per_channel": per_channel}
            # Weights of 7 bits: its sums saturate on processors without VNNI.
            quantization.quantize_dynamic(path, out, reduce_range=True, **how)
            sizes = ["--shape", f"x=3x{LENGTH}x{WIDTH}"]
            profile = compress("bench", out, "--profile", "--json", *sizes).json()["profile"]["parts"]
            kernels = [kernel for part in profile for kernel in part["kernels"]]
            assert kernels.count("gemm_dynamic_i8") == 5 and "burn" not in kernels, kernels
            check = ["check", out, "--against", path, "--data", tmp_path / "eval.npz", "--batch", 3, "--json"]
            ours = compress(*check).json()["accuracy"]["outputs"][0]["sqnr_db"]
            x = {"x": floats(7, 3, LENGTH, WIDTH)}
            assert abs(ours - sqnr_db(run_onnx(path, x)[0], run_onnx(out, x)[0])) < 0.1
