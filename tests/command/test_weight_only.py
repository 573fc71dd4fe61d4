"""`--weights`: codes of 4 and 8 bits in blocks, beside ONNX Runtime."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from small import model, node
from support import ROOT, read_report, session

WIDE = 192
LIBRARY = Path(onnxruntime.__file__).parent / "capi"


def products(path):
    """Products as exporters write them: MatMul with a bias behind it, and Gemm with a turned weight."""
    rng = np.random.default_rng(4)
    made = {
        "a": rng.normal(0, 0.1, (WIDE, 96)),
        "bias": rng.normal(size=96),
        "b": rng.normal(0, 0.1, (64, 96)),
        "c": rng.normal(size=64),
    }
    # What lies to one side of zero wants zero points.
    made["d"] = rng.uniform(0.5, 1.5, (64, 32))
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["xa"], "first"),
        helper.make_node("Add", ["xa", "bias"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "b", "c"], ["g"], "second", transB=1),
        helper.make_node("MatMul", ["g", "d"], ["y"], "third"),
    ]
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 32])],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in made.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def data(tmp_path):
    """Inputs of which some are large, and hang together."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(256, 24)) @ rng.normal(size=(24, WIDE)) * rng.lognormal(0, 1, WIDE)
    np.savez(tmp_path / "data.npz", x=x.astype(np.float32))
    return tmp_path / "data.npz"


def run(path, x):
    """What the file says: optimised, ONNX Runtime multiplies codes of 8 bits."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def decibels(wanted, made):
    return 10 * np.log10((wanted**2).sum() / ((wanted - made) ** 2).sum())


@pytest.mark.parametrize(("weights", "least"), [("int4", 16), ("int8", 34)])
@pytest.mark.parametrize("target", ["portable", "onnxruntime"])
def test_weights_become_codes_that_onnx_runtime_reads(compress, tmp_path, data, weights, least, target):
    model, x = products(tmp_path / "m.onnx"), np.load(data)["x"]
    outs = {}
    for by, given in (("nearest", []), ("gptq", ["--data", data])):
        out = tmp_path / f"{by}.onnx"
        compress(model, "--weights", weights, "--target", target, *given, "-o", out, "--check", "none")
        onnx.checker.check_model(onnx.load(out))
        outs[by] = decibels(run(model, x), run(out, x))
    kinds = {node.op_type for node in onnx.load(out).graph.node}
    assert ("MatMulNBits" in kinds) == (target == "onnxruntime") and ("DequantizeLinear" in kinds) == (
        target == "portable"
    )
    # An operator for ONNX Runtime was brought in.
    assert not read_report(out.with_suffix(".report.json"))["undone"]
    assert outs["nearest"] > least and outs["gptq"] > outs["nearest"] + 0.3, outs
    # Ours runs it as it is written; ONNX Runtime multiplies codes of 8 bits.
    assert far(compress, out, data) < 3e-2


def far(compress, model, data):
    """How far ONNX Runtime's outputs are from those of our executor."""
    by = ["--engine", "onnxruntime", "--ort", LIBRARY, "--reference", "cpu"]
    done = compress("bench", model, "--device", "cpu", *by, "--data", data, "--batch", 64, "--runs", 1, "--json")
    return json.loads(done.out)["max_relative_difference"]


def test_a_weight_of_four_bits_takes_five(compress, tmp_path):
    out = tmp_path / "out.onnx"
    for block, bits in (("32", 5), ("128", 4.25)):
        compress(
            products(tmp_path / "m.onnx"),
            "--weights",
            "int4",
            "--block",
            block,
            "-o",
            out,
            "--check",
            "none",
            "--force",
        )
        tensors = {t.name: t for t in onnx.load(out).graph.initializer}
        a, scales = tensors["a_quantized"], tensors["a_scale"]
        assert a.data_type in (TensorProto.INT4, TensorProto.UINT4) and list(a.dims) == [WIDE, 96]
        # 192 inputs are two blocks of 128.
        blocks = -(-WIDE // int(block))
        assert list(scales.dims) == [blocks, 96]
        assert 4 + 32 * blocks / WIDE == pytest.approx(bits, abs=0.1)
    # Of what lies to one side of zero, codes have a zero point.
    compress(products(tmp_path / "m.onnx"), "--weights", "int4", "-o", out, "--check", "none", "--force")
    tensors = {t.name: t for t in onnx.load(out).graph.initializer}
    assert tensors["d_quantized"].data_type == tensors["d_zero_point"].data_type == TensorProto.UINT4


def test_made_up_inputs_don_t_round_weights(compress, tmp_path):
    """Without data, the check runs on inputs that are made up: they say nothing of what layers read."""
    model, outs = products(tmp_path / "m.onnx"), []
    for check in ("none", "full"):
        outs.append(tmp_path / f"{check}.onnx")
        compress(model, "--weights", "int4", "--check", check, "-o", outs[-1])
    a, b = ({t.name: t.raw_data for t in onnx.load(out).graph.initializer} for out in outs)
    assert a == b


def test_matmulnbits_of_others_is_read(compress, tmp_path):
    """With zero points of an odd number of blocks, a last block that isn't full, and a bias."""
    rng = np.random.default_rng(8)
    k, n, block = 80, 24, 32
    blocks = -(-k // block)
    codes = rng.integers(0, 256, (n, blocks, block // 2), np.uint8)
    zeros = rng.integers(0, 256, (n, (blocks + 1) // 2), np.uint8)
    scales, bias = rng.uniform(0.01, 0.1, (n, blocks)).astype(np.float32), rng.normal(size=n).astype(np.float32)
    made = {"b": codes, "s": scales, "z": zeros, "bias": bias}
    node = helper.make_node(
        "MatMulNBits",
        ["x", "b", "s", "z", "", "bias"],
        ["y"],
        "by_bits",
        domain="com.microsoft",
        K=k,
        N=n,
        bits=4,
        block_size=block,
        accuracy_level=1,
    )
    graph = helper.make_graph(
        [node],
        "by_bits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3, n])],
        [numpy_helper.from_array(v, name) for name, v in made.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), model)
    x = rng.normal(size=(5, 3, k)).astype(np.float32)
    compress(model, "-o", out, "--check", "none")
    assert {n.op_type for n in onnx.load(out).graph.node} == {"DequantizeLinear", "MatMul", "Add"}
    np.testing.assert_allclose(run(out, x), run(model, x), rtol=1e-4, atol=1e-4)
    # For ONNX Runtime it stays what it is, and is multiplied in codes of 8 bits.
    kept = tmp_path / "kept.onnx"
    compress(out, "--target", "onnxruntime", "-o", kept, "--check", "none", "--strict")
    assert [n.op_type for n in onnx.load(kept).graph.node] == ["MatMulNBits", "Add"]
    np.testing.assert_allclose(run(kept, x), run(model, x), atol=0.02 * np.abs(run(model, x)).max())
    np.savez(tmp_path / "x.npz", x=x)
    # Our kernel makes codes of x, as ONNX Runtime's does at level 4.
    before = run(model, x)
    made = onnx.load(model)
    next(a for a in made.graph.node[0].attribute if a.name == "accuracy_level").i = 4
    onnx.save(made, model)
    theirs = np.abs(run(model, x) - before).max() / np.abs(before).max()
    assert far(compress, out, tmp_path / "x.npz") < 2 * theirs < 0.02


def test_what_cannot_be_done_is_said(compress, tmp_path):
    model = products(tmp_path / "m.onnx")
    assert "cannot be used with" in compress(model, "--weights", "int4", "--int8", code=2).err
    assert "--block needs --weights" in compress(model, "--block", "64", code=2).err
    out = tmp_path / "out.onnx"
    done = compress(model, "--weights", "int4", "--exclude", ".*", "-o", out, "--check", "none")
    assert "asked for --weights: no weight became codes (excluded by --exclude (3 layers))" in done.err
    assert any("no weight became codes" in line for line in read_report(out.with_suffix(".report.json"))["undone"])
    compress(ROOT / "models/digits/digits.onnx", "--weights", "int4", "-o", out, "--check", "none", "--force")
    skipped = [p for p in read_report(out.with_suffix(".report.json"))["passes"] if p["name"] == "weights"][0][
        "skipped"
    ]
    assert all("only products" in s["reason"] for s in skipped) and len(skipped) == 3


@pytest.mark.parametrize("format", ["int4", "int8"])
@pytest.mark.parametrize("columns", [64, 96])
def test_a_weight_that_layers_read_both_ways_round(compress, tmp_path, rng, format, columns):
    """Codes as ONNX Runtime's product has them are of one of them: both keep the form that all can read."""
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    weights = {"w": rng.standard_normal((columns, 64)).astype(np.float32)}
    nodes = [node("Gemm", "x w", "a", transB=1), node("Relu", "a", "b"), node("MatMul", "b w", "y")]
    onnx.save(model(nodes, [("x", ["n", 64])], [("y", ["n", 64])], weights), path)
    compress(path, "--weights", format, "--target", "onnxruntime", "-o", out, "--check", "none")
    x = rng.standard_normal((8, 64)).astype(np.float32)
    before, after = (session(p).run(None, {"x": x})[0] for p in (path, out))
    assert np.abs(after - before).max() < 0.2 * np.abs(before).max()


@pytest.mark.parametrize("target", ["portable", "onnxruntime"])
def test_weights_are_trained_in_codes(compress, tmp_path, data, target):
    """Zeros that pruning made stay."""
    model, x = products(tmp_path / "m.onnx"), np.load(data)["x"]
    rounded, trained, sparse = (tmp_path / f"{name}.onnx" for name in ("rounded", "trained", "sparse"))
    how = ["--weights", "int4", "--target", target, "--data", data]
    compress(model, *how, "-o", rounded, "--check", "none")
    report = compress(model, *how, "--qat", "--epochs", 2, "--lr", 0.001, "-o", trained, "--json").json()
    (training,) = next(p for p in report["passes"] if p["name"] == "weights")["trained"]
    assert (training["name"], training["epochs"]) == ("qat", 2) and not report["undone"]
    assert {n.op_type for n in onnx.load(trained).graph.node} == {n.op_type for n in onnx.load(rounded).graph.node}
    assert decibels(run(model, x), run(trained, x)) > 20
    assert far(compress, trained, data) < 3e-2
    pruning = ["--prune", 0.5, "--prune-ends", "--qat", "--epochs", 1]
    pruned = compress(model, *how, *pruning, "-o", sparse, "--json").json()
    # Most of them are in the first.
    assert pruned["layers"][0]["sparsity"] > 0.6


def test_training_in_codes_brings_answers_nearer(compress, tmp_path, data):
    """To those of the original, through codes and back; the best epoch is kept."""
    how = ["--weights", "int4", "--qat", "--epochs", 20, "--lr", 0.01, "--data", data]
    report = compress(products(tmp_path / "m.onnx"), *how, "-o", tmp_path / "out.onnx", "--json").json()
    (training,) = next(p for p in report["passes"] if p["name"] == "weights")["trained"]
    losses = [epoch["loss"] for epoch in training["course"][1:]]
    assert losses[-1] < losses[0] / 2 and training["after"] >= training["before"]


def test_training_needs_data(compress, tmp_path):
    model = products(tmp_path / "m.onnx")
    assert "--qat is for training: it needs --data" in compress(model, "--weights", "int4", "--qat", code=2).err
    done = compress(model, "--weights", "int4", "--qat", "--data", "data.npz", "--time", "9s", code=2)
    assert "--time needs --int8 or --qat without --weights" in done.err


@pytest.mark.parametrize("target", ["portable", "tensorrt"])
def test_weights_become_floats_of_8_bits(compress, tmp_path, data, target):
    model, out, x = products(tmp_path / "m.onnx"), tmp_path / "out.onnx", np.load(data)["x"]
    compress(model, "--weights", "fp8", "--target", target, "-o", out, "--check", "none")
    made = onnx.load(out)
    onnx.checker.check_model(made, full_check=True)
    assert made.opset_import[0].version == 19
    tensors = {t.name: t for t in made.graph.initializer}
    for name, outputs in (("a", 96), ("b", 64), ("d", 32)):
        assert tensors[f"{name}_quantized"].data_type == TensorProto.FLOAT8E4M3FN
        assert list(tensors[f"{name}_scale"].dims) == [outputs]
    # A fraction of three bits errs by 1/16 at most, in three layers.
    assert 24 < decibels(run(model, x), run(out, x)) < 40
    assert far(compress, out, data) < 1e-5
    assert "--block needs --weights int4 or int8" in compress(model, "--weights", "fp8", "--block", "64", code=2).err
    assert "exclude each other" in compress(model, "--weights", "fp8", "--qat", "--data", data, code=2).err


def normalised(path, kind, read_elsewhere=False):
    """Products behind a normalisation, in the ways of exporters, whose channels differ a hundredfold: some inputs count more."""
    rng = np.random.default_rng(8)
    wide, hidden = 64, 96
    scale, shift = rng.lognormal(0, 1.5, wide), rng.normal(size=wide)
    weights = {"scale": scale, "shift": shift, "eps": np.array(1e-5), "two": np.array(2.0)}
    weights |= {name: rng.normal(0, 0.1, (wide, hidden)) for name in ("gate", "up")}
    weights |= {"down": rng.normal(0, 0.1, (hidden, 32)), "more": rng.normal(size=hidden)}
    norms = {
        "LayerNormalization": [node("LayerNormalization", "x scale shift", "n", axis=-1)],
        "RMS": [
            node("Pow", "x two", "square"),
            node("ReduceMean", "square", "mean", axes=[-1]),
            node("Add", "mean eps", "kept"),
            node("Sqrt", "kept", "root"),
            node("Div", "x root", "even"),
            node("Mul", "scale even", "n"),
        ],
        "parts": [
            node("ReduceMean", "x", "middle", axes=[-1]),
            node("Sub", "x middle", "even"),
            node("Mul", "even scale", "wide"),
            node("Add", "wide shift", "n"),
        ],
    }
    nodes = [
        *norms[kind],
        node("MatMul", "n gate", "g"),
        node("Sigmoid", "g", "s"),
        node("Mul", "g s", "a"),
        node("MatMul", "n up", "uw"),
        node("Add", "uw more", "u"),
        node("Mul", "a u", "h"),
        node("MatMul", "h down", "y"),
    ]
    outputs = [("y", ["N", 32])] + ([("n", ["N", wide]), ("h", ["N", hidden])] if read_elsewhere else [])
    weights = {k: v.astype(np.float32) for k, v in weights.items()}
    onnx.save(model(nodes, [("x", ["N", wide])], outputs, weights), path)
    return path


@pytest.mark.parametrize("kind", ["LayerNormalization", "RMS", "parts"])
def test_inputs_that_count_more_are_scaled(compress, tmp_path, kind):
    """What makes the inputs divides them; where something else reads them, products of their own do (AWQ)."""
    x = np.random.default_rng(9).normal(size=(256, 64)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x)
    found, constants, products = {}, {}, {}
    for name, elsewhere in (("free", False), ("held", True)):
        source, out = normalised(tmp_path / f"{name}.onnx", kind, elsewhere), tmp_path / f"{name}.out.onnx"
        for by, given in (("nearest", []), ("data", ["--data", tmp_path / "data.npz"])):
            compress(source, "--weights", "int4", *given, "-o", out, "--check", "none", "--force")
            test = np.random.default_rng(10).normal(size=(256, 64)).astype(np.float32)
            found[name, by] = decibels(run(source, test), run(out, test))
        pair = [{t.name: numpy_helper.to_array(t) for t in onnx.load(p).graph.initializer} for p in (source, out)]
        constants[name] = {k: np.array_equal(*(p[k].ravel() for p in pair)) for k in pair[1] if k in pair[0]}
        products[name] = [n.output[0] for n in onnx.load(out).graph.node if n.output[0].endswith("_equalised")]
    # Without factors it is 5.4 dB.
    assert all(found[name, "data"] > found[name, "nearest"] + 6 for name in products), found
    assert not constants["free"]["scale"] and not constants["free"]["more"] and not products["free"]
    assert constants["held"]["scale"] and constants["held"]["more"] and products["held"] == ["n_equalised"]


def test_few_samples_bring_no_products(compress, tmp_path):
    """Fewer samples than inputs say too little of what others gain."""
    source, out = normalised(tmp_path / "m.onnx", "LayerNormalization", True), tmp_path / "out.onnx"
    x = np.random.default_rng(9).normal(size=(64, 64)).astype(np.float32)
    for count, products in ((40, 0), (64, 1)):
        np.savez(tmp_path / "data.npz", x=x[:count])
        # All samples calibrate where others are held out.
        args = ["--data", tmp_path / "data.npz", "--eval", tmp_path / "data.npz", "--check", "none"]
        compress(source, "--weights", "int4", *args, "-o", out, "--force")
        assert len([n for n in onnx.load(out).graph.node if n.output[0].endswith("_equalised")]) == products, count


@pytest.mark.parametrize("between", ["Clip", "MaxPool", "AveragePool"])
def test_nothing_is_scaled_through_what_factors_do_not_pass(compress, tmp_path, between):
    """A Clip cuts what is scaled up; a pool along the inputs mixes their factors."""
    rng = np.random.default_rng(11)
    uneven = rng.lognormal(0, 1, 64)
    given = {
        "a": rng.normal(0, 0.5, (64, 64)) * uneven,
        "scale": rng.lognormal(0, 1, 64),
        "b": rng.normal(0, 0.1, (64, 48)),
    }
    given |= {"least": np.array(0), "most": np.array(4)}
    steps = {"Clip": [node("Clip", "m least most", "h")]}
    for pool in ("MaxPool", "AveragePool"):
        steps[pool] = [node("Mul", "m scale", "wide"), node(pool, "wide", "h", kernel_shape=[1, 3], pads=[0, 1, 0, 1])]
    nodes = [node("MatMul", "x a", "m"), *steps[between], node("MatMul", "h b", "y")]
    weights = {k: v.astype(np.float32) for k, v in given.items()}
    shape = [("x", ["N", 2, 6, 64])], [("y", ["N", 2, 6, 48])]
    onnx.save(model(nodes, *shape, weights), tmp_path / "m.onnx")
    x = rng.normal(size=(48, 2, 6, 64)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x[:32])
    found = {}
    for name, by in (("nearest", []), ("data", ["--data", tmp_path / "data.npz"])):
        out = tmp_path / f"{name}.onnx"
        compress(tmp_path / "m.onnx", "--weights", "int4", *by, "-o", out, "--check", "none")
        found[name] = decibels(run(tmp_path / "m.onnx", x[32:]), run(out, x[32:]))
    assert found["data"] > found["nearest"] + 0.3, found


def test_an_excluded_layer_is_not_scaled_for_the_next(compress, tmp_path, data):
    source, out = normalised(tmp_path / "m.onnx", "LayerNormalization"), tmp_path / "out.onnx"
    x = np.random.default_rng(9).normal(size=(256, 64)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x)
    how = ["--weights", "int4", "--data", tmp_path / "data.npz", "--check", "none"]
    compress(source, *how, "--exclude", "^up$|^scale$", "-o", out)
    before, after = ({t.name: t.raw_data for t in onnx.load(p).graph.initializer} for p in (source, out))
    assert all(before[name] == after[name] for name in ("up", "more", "scale", "shift"))


@pytest.mark.parametrize("target", ["portable", "onnxruntime"])
def test_zeros_are_counted_where_codes_have_zero_points(compress, tmp_path, target):
    """A code that is its block's zero point stands for zero; a code of 0 does not."""
    rng = np.random.default_rng(13)
    weights = {name: rng.uniform(0.2, 1, (64, 48)).astype(np.float32) for name in "ab"}
    weights["a"][rng.random((64, 48)) < 0.5] = 0
    weights["b"] = weights["b"].T.copy()
    nodes = [node("MatMul", "x a", "h", "first"), node("Gemm", "x b", "k", "second", transB=1)]
    onnx.save(model(nodes, [("x", ["N", 64])], [("h", ["N", 48]), ("k", ["N", 48])], weights), tmp_path / "m.onnx")
    out = tmp_path / "out.onnx"
    report = compress(tmp_path / "m.onnx", "--weights", "int4", "--target", target, "-o", out, "--json").json()
    made = onnx.load(out)
    assert any(len(n.input) > 3 or n.op_type == "DequantizeLinear" and len(n.input) > 2 for n in made.graph.node)
    sparsity = {layer["node"]: layer["sparsity"] for layer in report["layers"]}
    assert sparsity["first"] == pytest.approx(np.mean(weights["a"] == 0), abs=1e-6) and sparsity["second"] == 0
    assert report["input"]["nonzero"] - report["output"]["nonzero"] < 0.2 * report["input"]["parameters"]


def test_a_weight_is_rounded_for_all_that_read_it(compress, tmp_path):
    """Two products by one matrix: their inputs differ in which of them are large."""
    rng = np.random.default_rng(12)
    weight = rng.normal(0, 0.1, (WIDE, 48)).astype(np.float32)
    nodes = [node("MatMul", "x w", "y"), node("MatMul", "z w", "v")]
    inputs, outputs = ([(n, ["N", WIDE]) for n in "xz"], [(n, ["N", 48]) for n in "yv"])
    onnx.save(model(nodes, inputs, outputs, {"w": weight}), tmp_path / "m.onnx")
    wide = [rng.lognormal(0, 1.5, WIDE) for _ in "xz"]
    feed = {n: (rng.normal(size=(512, WIDE)) * by).astype(np.float32) for n, by in zip("xz", wide, strict=True)}
    np.savez(tmp_path / "data.npz", **feed)
    found = []
    for by in ([], ["--data", tmp_path / "data.npz"]):
        compress(
            tmp_path / "m.onnx", "--weights", "int4", *by, "-o", tmp_path / "out.onnx", "--check", "none", "--force"
        )
        pairs = zip(*(session(p).run(None, feed) for p in (tmp_path / "m.onnx", tmp_path / "out.onnx")), strict=True)
        found.append([decibels(before, after) for before, after in pairs])
    assert all(told > plain for plain, told in zip(*found, strict=True)), found
