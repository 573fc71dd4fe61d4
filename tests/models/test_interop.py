"""What comes out, in other hands: onnx.checker accepts it, and ONNX Runtime runs it as meant."""

import numpy as np
import onnx
import pytest
import small
from onnx import TensorProto, helper
from small import node
from support import assert_close, run_onnx, session

OPSETS = [7, 9, 11, 13, 15, 17, 18, 21]


def compressed(compress, made, folder, *args):
    """The output for a model that is made here, checked."""
    path = small.save(made, folder)
    output = folder / "out.onnx"
    compress(path, "-o", output, "--force", "--quiet", *args)
    onnx.checker.check_model(str(output), full_check=True)
    return path, output


def signature(path):
    """Names and types of inputs and outputs."""
    graph = onnx.load(path).graph
    return [(v.name, v.type.SerializeToString()) for v in (*graph.input, *graph.output)]


@pytest.mark.parametrize("opset", OPSETS)
def test_simplified_models_compute_the_same(compress, tmp_path, opset):
    for made in (small.cnn(opset=opset), small.mlp(opset=opset)):
        if opset < 9:
            # Before IR version 4 weights are inputs, too.
            made.ir_version = 3
            made.graph.input.extend(
                helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in made.graph.initializer
            )
        path, output = compressed(compress, made, tmp_path)
        names = [t.name for t in made.graph.initializer]
        kept = [s for s in signature(path) if s[0] not in names]
        assert signature(output) == kept
        # A form that the old opset lacks may need a newer one, but never a lower.
        assert opset <= small.opset(output) <= max(opset, 13)
        shape = [d.dim_value or 3 for d in made.graph.input[0].type.tensor_type.shape.dim]
        x = small.floats(20, *shape)
        assert_close(run_onnx(output, {"input": x}), run_onnx(path, {"input": x}))


def test_batch_norm_and_relu_are_gone(compress, tmp_path):
    path, output = compressed(compress, small.cnn(), tmp_path)
    assert "BatchNormalization" not in small.ops(output)
    assert len(small.ops(output)) < len(small.ops(path))


@pytest.mark.parametrize("flags", [[], ["--int8"], ["--prune", "0.5"], ["--int8", "--prune", "0.5"]], ids=" ".join)
def test_a_dynamic_batch_stays_dynamic(compress, tmp_path, flags):
    path, output = compressed(compress, small.cnn(), tmp_path, *flags)
    assert signature(output) == signature(path)
    for n in (1, 3, 5):
        got = run_onnx(output, {"input": small.floats(n, n, 3, 12, 12)})[0]
        assert got.shape == (n, 5) and np.isfinite(got).all()


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 16, 21, 64, 65, 100])
@pytest.mark.parametrize("flags", [[], ["--int8"]], ids=["simplify", "int8"])
def test_a_fixed_batch_stays_fixed(compress, tmp_path, batch, flags):
    """Made-up data has as many samples as the model wants, whatever that is."""
    path, output = compressed(compress, small.mlp(batch=batch), tmp_path, *flags)
    assert signature(output) == signature(path)
    assert run_onnx(output, {"input": small.floats(1, batch, 8)})[0].shape == (batch, 4)


@pytest.mark.parametrize("opset", OPSETS)
def test_int8_moves_old_models_to_opset_13(compress, tmp_path, opset):
    """Scales per channel came with opset 13: a lower number in the file makes it invalid."""
    made = small.cnn(opset=opset)
    if opset < 9:
        made.ir_version = 4
    path, output, x = calibrated(compress, tmp_path, made)
    assert small.opset(output) == max(opset, 13)
    assert onnx.load(output).ir_version >= 7
    (before,), (after,) = run_onnx(path, {"input": x}), run_onnx(output, {"input": x})
    error = np.sqrt(((before - after) ** 2).sum() / (before**2).sum())
    assert error < 0.1


def calibrated(compress, folder, made, *args):
    """An INT8 model calibrated on the samples it is then compared on."""
    shape = [d.dim_value or 40 for d in made.graph.input[0].type.tensor_type.shape.dim]
    x = small.floats(30, *shape)
    np.savez(folder / "data.npz", x=x)
    path, output = compressed(compress, made, folder, "--int8", "--data", folder / "data.npz", *args)
    return path, output, x


def test_int8_layers_are_integer_in_onnx_runtime(compress, tmp_path):
    path, output, x = calibrated(compress, tmp_path, small.cnn())
    session(output, save=tmp_path / "optimised.onnx")
    names = small.ops(tmp_path / "optimised.onnx")
    assert names.count("QLinearConv") == 2 and "Conv" not in names and "FusedConv" not in names
    # Unoptimised and optimised, it is the same model but for a step of rounding.
    slow, fast = run_onnx(output, {"input": x}), run_onnx(output, {"input": x}, optimise=True)
    step = np.abs(slow[0]).max() / 100
    np.testing.assert_allclose(fast[0], slow[0], atol=step)
    before = run_onnx(path, {"input": x})[0]
    assert np.sqrt(((before - slow[0]) ** 2).sum() / (before**2).sum()) < 0.05


def test_int8_runs_through_sums_and_joins(compress, tmp_path):
    """No layer, sum, join or pool between integer layers falls back to floats."""
    path, output, x = calibrated(compress, tmp_path, small.branches())
    session(output, save=tmp_path / "optimised.onnx")
    names = small.ops(tmp_path / "optimised.onnx")
    assert names.count("QLinearConv") == 5
    assert {"QLinearAdd", "QLinearConcat", "QLinearAveragePool"} <= set(names)
    assert not {"Conv", "FusedConv", "Add", "Concat", "AveragePool", "Relu", "Clip"} & set(names)
    before, after = run_onnx(path, {"input": x})[0], run_onnx(output, {"input": x}, optimise=True)[0]
    assert np.sqrt(((before - after) ** 2).sum() / (before**2).sum()) < 0.1


@pytest.mark.parametrize("first", ["Relu", "Clip"])
@pytest.mark.parametrize("second", ["none", "Relu"])
@pytest.mark.parametrize("join", ["Concat", "Add"])
def test_activations_survive_a_join(compress, tmp_path, first, second, join):
    """A Relu or Clip may vanish into the range of its value; not where a join widens that range."""
    made = small.model(
        [
            node("Conv", "x w1", "a", "first"),
            node("Clip", "a low high", "p") if first == "Clip" else node("Relu", "a", "p"),
            node("Conv", "x w2", "b", "second"),
            node("Relu", "b", "q") if second == "Relu" else node("Identity", "b", "q"),
            node("Concat", "p q", "j", axis=1) if join == "Concat" else node("Add", "p q", "j"),
            node("Conv", "j w3", "y", "third"),
        ],
        [("x", ["n", 3, 6, 6])],
        [("y", None)],
        {
            "w1": small.floats(1, 4, 3, 1, 1),
            "w2": small.floats(2, 4, 3, 1, 1, scale=4),
            "w3": small.floats(3, 4, 8 if join == "Concat" else 4, 1, 1),
            "low": np.float32(0),
            "high": np.float32(0.8),
        },
    )
    data = small.floats(9, 40, 3, 6, 6)
    np.savez(tmp_path / "data.npz", x=data)
    path, output = small.save(made, tmp_path), tmp_path / "out.onnx"
    compress(path, "--int8", "--data", tmp_path / "data.npz", "-o", output)
    before, after = run_onnx(path, {"x": data})[0], run_onnx(output, {"x": data})[0]
    assert np.sqrt(((before - after) ** 2).sum() / (before**2).sum()) < 0.05


@pytest.mark.parametrize("kind", ["Gemm", "MatMul"])
def test_int8_matrix_products_are_integer_in_onnx_runtime(compress, tmp_path, kind):
    """A layer whose output feeds another takes and gives integers; the last one gives floats."""
    weights = {
        "w": small.floats(1, 16, 24),
        "v": small.floats(2, 24, 4),
        "b": small.floats(3, 24),
        "c": small.floats(4, 4),
    }
    if kind == "Gemm":
        nodes = [node("Gemm", "x w b", "h"), node("Relu", "h", "r"), node("Gemm", "r v c", "y")]
    else:
        nodes = [node("MatMul", "x w", "h"), node("Relu", "h", "r"), node("MatMul", "r v", "y")]
        del weights["b"], weights["c"]
    shape = ["n", 16] if kind == "Gemm" else ["n", 5, 16]
    made = small.model(nodes, [("x", shape)], [("y", [*shape[:-1], 4])], weights)
    data = small.floats(9, *[40 if d == "n" else d for d in shape])
    np.savez(tmp_path / "data.npz", x=data)
    path, output = compressed(compress, made, tmp_path, "--int8", "--data", tmp_path / "data.npz")
    session(output, save=tmp_path / "optimised.onnx")
    names = small.ops(tmp_path / "optimised.onnx")
    integer = [n for n in names if n in ("QGemm", "QLinearMatMul", "MatMulIntegerToFloat", "DynamicQuantizeMatMul")]
    assert len(integer) == 2, names
    before, after = run_onnx(path, {"x": data})[0], run_onnx(output, {"x": data}, optimise=True)[0]
    assert np.sqrt(((before - after) ** 2).sum() / (before**2).sum()) < 0.05


def test_int8_form(compress, tmp_path):
    """U8 activations, S8 weights per channel, INT32 biases: what integer kernels of all runtimes take."""
    # Room for processors without VNNI has tests of its own.
    _, output, _ = calibrated(compress, tmp_path, small.cnn(), "--reduce-range", "never")
    model = onnx.load(output)
    weights = small.initializers(output)
    made_by = {o: n for n in model.graph.node for o in n.output}
    layers = [n for n in model.graph.node if n.op_type in ("Conv", "Gemm")]
    assert len(layers) == 3
    for layer in layers:
        activation, weight, bias = (made_by[i] for i in layer.input)
        assert {activation.op_type, weight.op_type, bias.op_type} == {"DequantizeLinear"}
        w, scale = weights[weight.input[0]], weights[weight.input[1]]
        assert w.dtype == np.int8 and scale.shape == (w.shape[0],) and (np.abs(w.astype(int)) <= 127).all()
        assert (np.abs(w.astype(int)).reshape(len(w), -1).max(1) >= 126).all(), "the range is used to the full"
        assert [a.i for a in weight.attribute if a.name == "axis"] == [0]
        if len(weight.input) > 2:
            assert (weights[weight.input[2]] == 0).all()
        x_scale, x_zero = weights[activation.input[1]], weights[activation.input[2]]
        assert x_zero.dtype == np.uint8 and x_scale.shape == ()
        b, b_scale = weights[bias.input[0]], weights[bias.input[1]]
        assert b.dtype == np.int32
        np.testing.assert_allclose(b_scale, scale * x_scale, rtol=1e-6)
    assert output.stat().st_size < 30_000


def test_our_figures_are_those_of_onnx_runtime(compress, tmp_path):
    """The INT8 model on our runtime and on ONNX Runtime: the same distance from the original."""
    path, output, x = calibrated(compress, tmp_path, small.cnn())
    report = compress("check", output, "--against", path, "--data", tmp_path / "data.npz", "--json").json()
    before, after = (run_onnx(p, {"input": x})[0].astype(np.float64) for p in (path, output))
    sqnr = 10 * np.log10((before**2).sum() / ((before - after) ** 2).sum())
    assert report["accuracy"]["sqnr_db"] == pytest.approx(sqnr, abs=0.5)


def test_tied_weights_stay_tied(compress, tmp_path):
    made = small.model(
        [node("MatMul", "x w", "a"), node("Relu", "a", "r"), node("MatMul", "r w", "y")],
        [("x", ["n", 32])],
        [("y", ["n", 32])],
        {"w": small.floats(1, 32, 32, scale=0.2)},
    )
    for flags in ([], ["--prune", "0.5", "--prune-ends"], ["--int8"]):
        path, output = compressed(compress, made, tmp_path, *flags)
        matrices = [w for w in small.initializers(output).values() if w.shape == (32, 32)]
        assert len(matrices) == 1, flags
        if not flags:
            x = small.floats(2, 4, 32)
            assert_close(run_onnx(output, {"x": x}), run_onnx(path, {"x": x}))


def test_a_default_that_is_kept_for_callers_is_never_folded(compress, tmp_path):
    """From IR version 4 on a caller may replace an initializer that is also an input: the flag leaves that possible."""
    made = small.model(
        [node("Mul", "k k", "kk"), node("MatMul", "x w", "h"), node("Mul", "h kk", "y")],
        [("x", ["n", 4]), ("k", [1])],
        [("y", ["n", 3])],
        {"k": np.ones(1, np.float32), "w": small.floats(1, 4, 3)},
    )
    x = small.floats(2, 5, 4)
    for flags in ([], ["--int8"], ["--prune", "0.5"]):
        path, output = compressed(compress, made, tmp_path, "--keep-initializer-inputs", *flags)
        assert signature(output) == signature(path)
        once, thrice = run_onnx(output, {"x": x}), run_onnx(output, {"x": x, "k": np.float32([3])})
        np.testing.assert_allclose(thrice[0], once[0] * 9, rtol=1e-5)


@pytest.mark.parametrize("ir_version", [3, 4, 8])
def test_weights_that_are_listed_as_inputs_are_weights(compress, tmp_path, ir_version):
    """PyTorch's keep_initializers_as_inputs, and all files up to IR version 3."""
    made = small.cnn(opset=8 if ir_version == 3 else 13)
    made.ir_version = ir_version
    made.graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in made.graph.initializer)
    path, output = compressed(compress, made, tmp_path)
    assert [i.name for i in onnx.load(output).graph.input] == ["input"]
    assert "BatchNormalization" not in small.ops(output)
    shown = compress("inspect", path, "--json").json()
    assert [i["name"] for i in shown["inputs"]] == ["input"]
    done = compress(path, "--int8", "-o", tmp_path / "int8.onnx")
    assert small.ops(tmp_path / "int8.onnx").count("QuantizeLinear") > 3
    said = "also listed as graph inputs" in done.out
    assert said == (ir_version > 3), done.out


def test_outputs_that_are_inputs_constants_or_the_same(compress, tmp_path):
    """Names of outputs survive even when nothing is left to compute."""
    made = small.model(
        [
            node("Identity", "x", "same"),
            node("Identity", "c", "fixed"),
            node("Relu", "x", "once"),
            node("Identity", "once", "twice"),
            node("Neg", "once", "minus"),
        ],
        [("x", ["n", 2])],
        [("same", ["n", 2]), ("fixed", [3]), ("once", ["n", 2]), ("twice", ["n", 2]), ("minus", ["n", 2])],
        {"c": np.arange(3, dtype=np.float32)},
    )
    path, output = compressed(compress, made, tmp_path)
    assert [s[0] for s in signature(output)] == [s[0] for s in signature(path)]
    x = small.floats(1, 3, 2)
    assert_close(run_onnx(output, {"x": x}), run_onnx(path, {"x": x}))


def test_an_input_that_nothing_needs_stays(compress, tmp_path):
    made = small.model(
        [node("Relu", "x", "y"), node("Neg", "z", "unused")],
        [("x", ["n", 2]), ("z", ["n", 9])],
        [("y", ["n", 2])],
    )
    path, output = compressed(compress, made, tmp_path)
    assert signature(output) == signature(path) and small.ops(output) == ["Relu"]


def test_outputs_of_other_types(compress, tmp_path):
    """Not every output is a float; the whole model must come through all the same."""
    made = small.model(
        [node("Relu", "x", "y"), node("Shape", "x", "s"), node("Less", "x zero", "b"), node("Cast", "x", "h", to=10)],
        [("x", ["n", 3])],
        [
            ("y", ["n", 3]),
            ("s", [2], TensorProto.INT64),
            ("b", ["n", 3], TensorProto.BOOL),
            ("h", ["n", 3], TensorProto.FLOAT16),
        ],
        {"zero": np.float32(0)},
    )
    path, output = compressed(compress, made, tmp_path)
    x = small.floats(1, 4, 3)
    assert_close(run_onnx(output, {"x": x}), run_onnx(path, {"x": x}))
    compress("check", output, "--against", path)


@pytest.mark.parametrize("opset", [7, 10, 17])
def test_half_precision_models_come_through(compress, tmp_path, opset):
    """What old opsets keep in attributes is lifted in the type of the data."""
    half, old = TensorProto.FLOAT16, opset < 11
    pads = [0, 0, 1, 1, 0, 0, 1, 1]
    weights = {"w": small.floats(1, 4, 3, 3, 3).astype(np.float16)}
    if not old:
        weights |= {"pads": np.array(pads, np.int64), "low": np.float16(0), "high": np.float16(1)}
    nodes = [
        node("Pad", "x", "q", mode="reflect", pads=pads) if old else node("Pad", "x pads", "q", mode="reflect"),
        node("Conv", "q w", "p"),
        node("Clip", "p", "y", min=0.0, max=1.0) if old else node("Clip", "p low high", "y"),
    ]
    ends = [("x", [1, 3, 6, 6], half)], [("y", [1, 4, 6, 6], half)]
    made = small.model(nodes, *ends, weights, opset, ir=4 if old else 8)
    path, output = compressed(compress, made, tmp_path)
    if not old:
        x = small.floats(2, 1, 3, 6, 6).astype(np.float16)
        assert_close(run_onnx(output, {"x": x}), run_onnx(path, {"x": x}), 5e-3)


def test_models_too_large_to_guess_at_are_left_symbolic(compress, tmp_path):
    """Height and width are open: nothing may be folded to the size that made-up data has."""
    made = small.model(
        [
            node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
            node("Shape", "c", "s"),
            node("Slice", "s two four", "hw"),
            node("Concat", "front hw", "t", axis=0),
            node("Reshape", "c t", "y"),
        ],
        [("x", [1, 3, "h", "w"])],
        [("y", None)],
        {
            "w": small.floats(1, 4, 3, 3, 3),
            "two": np.array([2], np.int64),
            "four": np.array([4], np.int64),
            "front": np.array([2, 2], np.int64),
        },
    )
    path = small.save(made, tmp_path)
    output = tmp_path / "out.onnx"
    compress(path, "-o", output)
    for size in ((5, 7), (8, 3)):
        x = small.floats(3, 1, 3, *size)
        assert_close(run_onnx(output, {"x": x}), run_onnx(path, {"x": x}))
