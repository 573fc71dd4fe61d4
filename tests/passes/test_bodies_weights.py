"""Weights inside If in codes: those that branches share are stored once."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support import run_onnx
from test_bodies_int8 import branches, decibels, random, saved, values

WIDTH = 64
ROWS = 600


def decoder(path):
    """Two branches with the same layers, as decoders are that take a cache or none: all weights are around them."""

    def branch(end, *more):
        nodes = [
            helper.make_node("Gather", ["table", "ids"], [f"rows{end}"], name=f"rows_{end}"),
            helper.make_node("MatMul", [f"rows{end}", "w"], [f"a{end}"], name=f"first_{end}"),
            *more,
            helper.make_node("Relu", [f"b{end}" if more else f"a{end}"], [f"c{end}"]),
            helper.make_node("MatMul", [f"c{end}", "v"], [f"y{end}"], name=f"second_{end}"),
        ]
        return helper.make_graph(nodes, end, [], [values(f"y{end}", ["n", "s", WIDTH])])

    past = helper.make_node("Add", ["ae", "past"], ["be"])
    nodes = [helper.make_node("If", ["c"], ["y"], "choice", then_branch=branch("t"), else_branch=branch("e", past))]
    inputs = [
        values("c", [1], TensorProto.BOOL),
        values("ids", ["n", "s"], TensorProto.INT64),
        values("past", ["n", "s", WIDTH]),
    ]
    weights = {
        "table": random(ROWS, WIDTH, seed=1),
        "w": random(WIDTH, WIDTH, seed=2),
        "v": random(WIDTH, WIDTH, seed=3),
    }
    return saved(path, nodes, inputs, [values("y", ["n", "s", WIDTH])], **weights)


@pytest.mark.parametrize(
    ("how", "has", "share", "least"),
    [
        (["--weights", "int4"], "DequantizeLinear", 0.2, 15),
        (["--weights", "int4", "--target", "onnxruntime"], "MatMulNBits", 0.165, 15),
        (["--weights", "int8"], "DequantizeLinear", 0.33, 35),
        (["--int8=dynamic"], "MatMulInteger", 0.33, 25),
    ],
)
def test_codes_that_branches_share_are_stored_once(compress, tmp_path, how, has, share, least):
    source, output = decoder(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    report = compress(source, *how, "-o", output, "--check", "none", "--json").json()
    made = onnx.load(output)
    onnx.checker.check_model(made)
    assert not report["undone"]
    inside = [t for n in made.graph.node for a in n.attribute for t in a.g.initializer]
    weights = sum(len(t.raw_data) for t in [*made.graph.initializer, *inside])
    assert weights < share * 4 * (ROWS + 2 * WIDTH) * WIDTH
    # What they share keeps its name. ONNX Runtime has to have the codes that a DequantizeLinear reads in the branch.
    shared = {"table_quantized"} if has == "DequantizeLinear" else {"table_quantized", "w_quantized", "v_quantized"}
    assert shared <= {t.name for t in made.graph.initializer}
    assert any("stored again in each branch" in w for w in report["warnings"]) == (has == "DequantizeLinear")
    assert all(ops.count(has) == 2 for ops in branches(output).values())
    assert len(report["layers"]) == 4 and not any(layer["precision"] == "f32" for layer in report["layers"])
    rng = np.random.default_rng(0)
    for c in (True, False):
        feed = {"c": np.array([c]), "ids": rng.integers(0, ROWS, (2, 5)), "past": random(2, 5, WIDTH, seed=5)}
        before, after = run_onnx(source, feed)[0], run_onnx(output, feed, optimise=True)[0]
        assert decibels(before, after) > least


def test_a_weight_that_is_read_around_the_branches_too_stays(compress, tmp_path):
    source, output = decoder(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    made = onnx.load(source)
    made.graph.node.append(helper.make_node("MatMul", ["past", "w"], ["z"]))
    made.graph.output.append(values("z", ["n", "s", WIDTH]))
    onnx.save(made, source)
    compress(source, "--int8=dynamic", "-o", output, "--check", "none")
    names = {t.name for t in onnx.load(output).graph.initializer}
    assert {"v_quantized", "w"} <= names and "w_quantized" not in names


@pytest.mark.parametrize("how", [["--weights", "int4", "--target", "onnxruntime"], ["--int8=dynamic"]])
def test_a_branch_inside_a_branch_shares_its_codes(compress, tmp_path, how):
    """All read the weight from around the outermost; so do codes."""

    def inner(end):
        nodes = [helper.make_node("MatMul", ["h", "w"], [f"m{end}"], name=f"inner_{end}")]
        return helper.make_graph(nodes, f"inner_{end}", [], [values(f"m{end}", ["n", WIDTH])])

    first = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
        helper.make_node("If", ["d"], ["z"], "inside", then_branch=inner("t"), else_branch=inner("e")),
    ]
    outer = {
        "then_branch": helper.make_graph(first, "outer_t", [], [values("z", ["n", WIDTH])]),
        "else_branch": helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["k"], name="second")], "outer_e", [], [values("k", ["n", WIDTH])]
        ),
    }
    source, output = tmp_path / "in.onnx", tmp_path / "out.onnx"
    inputs = [values("c", [1], TensorProto.BOOL), values("d", [1], TensorProto.BOOL), values("x", ["n", WIDTH])]
    nodes = [helper.make_node("If", ["c"], ["y"], "outside", **outer)]
    saved(source, nodes, inputs, [values("y", ["n", WIDTH])], w=random(WIDTH, WIDTH, seed=1))
    report = compress(source, *how, "-o", output, "--check", "none", "--json").json()
    assert not report["undone"] and report["output"]["bytes"] < report["input"]["bytes"]
    large = [t for t in onnx.load(output).graph.initializer if len(t.raw_data) >= WIDTH * WIDTH // 2]
    assert [t.name for t in large] == ["w_quantized"]
    for c, d in ((True, True), (True, False), (False, True)):
        feed = {"c": np.array([c]), "d": np.array([d]), "x": random(3, WIDTH, seed=5)}
        assert decibels(run_onnx(source, feed)[0], run_onnx(output, feed, optimise=True)[0]) > 15


def test_training_inside_branches_is_said_to_be_left_out(compress, tmp_path):
    source, output = decoder(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    rng = np.random.default_rng(1)
    data = {
        "c": np.ones((32, 1), bool),
        "ids": rng.integers(0, ROWS, (32, 1, 5)),
        "past": random(32, 1, 5, WIDTH, seed=5),
    }
    np.savez(tmp_path / "data.npz", **data)
    how = ["--weights", "int4", "--qat", "--epochs", 1, "--data", tmp_path / "data.npz"]
    report = compress(source, *how, "-o", output, "--json", "--no-check").json()
    assert "asked for --qat: 4 layers inside If, Loop or Scan can't be trained" in report["undone"]
    # No sample takes the other branch, but its weights are those of this one.
    assert not any("rounded to the nearest" in w for w in report["warnings"])


def alike(rows, width, seed):
    """Inputs of which some are large, and hang together: what rounding by data is for."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(rows, 12)) @ rng.normal(size=(12, width)) * rng.lognormal(0, 1, width)).astype(np.float32)


def chooser(path):
    """Two branches that share a weight, and have one each; a loop multiplies by a further one."""

    def branch(end, own):
        nodes = [
            helper.make_node("MatMul", ["x", "w"], [f"a{end}"], name=f"shared_{end}"),
            helper.make_node("MatMul", ["x", own], [f"b{end}"], name=f"own_{end}"),
            helper.make_node("Add", [f"a{end}", f"b{end}"], [f"y{end}"]),
        ]
        return helper.make_graph(nodes, end, [], [values(f"y{end}", ["n", WIDTH])])

    scalar = [values(name, [], kind) for name, kind in (("i", TensorProto.INT64), ("on", TensorProto.BOOL))]
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["on"], ["still"]),
            helper.make_node("MatMul", ["state", "looped"], ["m"], name="in_loop"),
            helper.make_node("Add", ["m", "x"], ["next"]),
        ],
        "body",
        [*scalar, values("state", ["n", WIDTH])],
        [values("still", [], TensorProto.BOOL), values("next", ["n", WIDTH])],
    )
    nodes = [
        helper.make_node("If", ["c"], ["y"], "choice", then_branch=branch("t", "u"), else_branch=branch("e", "v")),
        helper.make_node("Loop", ["twice", "", "x"], ["z"], "again", body=body),
    ]
    weights = {name: random(WIDTH, WIDTH, seed=seed) for seed, name in enumerate(("w", "u", "v"), start=11)}
    weights |= {"looped": 0.02 * random(WIDTH, WIDTH, seed=15), "twice": np.array(2, np.int64)}
    inputs = [values("c", [1], TensorProto.BOOL), values("x", ["n", WIDTH])]
    return saved(path, nodes, inputs, [values("y", ["n", WIDTH]), values("z", ["n", WIDTH])], **weights)


def constants(graph):
    """The initializers of a graph, and of those inside it: of each name all that have it."""
    found = {}
    graphs = [graph]
    while graphs:
        one = graphs.pop()
        for t in one.initializer:
            found.setdefault(t.name, []).append(t.raw_data)
        graphs += [a.g for n in one.node for a in n.attribute if a.type == onnx.AttributeProto.GRAPH]
    return found


@pytest.mark.parametrize("target", ["portable", "onnxruntime"])
def test_weights_inside_are_rounded_by_what_their_layers_read(compress, tmp_path, target):
    source, data = chooser(tmp_path / "in.onnx"), tmp_path / "data.npz"
    x = alike(96, WIDTH, 21)
    np.savez(data, c=np.arange(64)[:, None] % 2 == 0, x=x[:64, None])
    found = {}
    for by, given in (("nearest", []), ("data", ["--data", data])):
        out = tmp_path / f"{by}.onnx"
        how = ["--weights", "int4", "--target", target, *given]
        report = compress(source, *how, "-o", out, "--check", "none", "--json").json()
        assert not any("rounded to the nearest" in w for w in report["warnings"])
        for c in (True, False):
            feed = {"c": np.array([c]), "x": x[64:]}
            pairs = zip(run_onnx(source, feed), run_onnx(out, feed), strict=True)
            found[by, c] = [decibels(before, after) for before, after in pairs]
        # Branches go on sharing what they shared.
        assert all(len(set(same)) == 1 for name, same in constants(onnx.load(out).graph).items() if name[0] == "w")
    for c in (True, False):
        assert all(better > plain + 1 for better, plain in zip(found["data", c], found["nearest", c], strict=True)), (
            found
        )


def test_codes_inside_do_not_depend_on_threads(compress, tmp_path):
    source, data = chooser(tmp_path / "in.onnx"), tmp_path / "data.npz"
    np.savez(data, c=np.arange(64)[:, None] % 2 == 0, x=alike(64, WIDTH, 21)[:, None])
    outs = [tmp_path / f"{threads}.onnx" for threads in (1, 2)]
    for threads, out in zip((1, 2), outs, strict=True):
        how = ["--weights", "int4", "--data", data, "--threads", threads, "--check", "none"]
        compress(source, *how, "-o", out)
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_a_branch_that_no_sample_takes_is_named(compress, tmp_path):
    source, data = chooser(tmp_path / "in.onnx"), tmp_path / "data.npz"
    np.savez(data, c=np.ones((32, 1), bool), x=alike(32, WIDTH, 21)[:, None])
    how = ["--weights", "int4", "--data", data, "--check", "none", "--json"]
    report = compress(source, *how, "-o", tmp_path / "out.onnx").json()
    assert any(
        "the weights of 1 layer inside If, Loop or Scan are rounded to the nearest" in w for w in report["warnings"]
    )
