"""INT8 inside If, Loop and Scan: what calibration reaches is quantised, and ONNX Runtime computes about the same."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import run_onnx, sqnr_db

SAMPLES = 64
WIDTH = 32


def random(*shape, seed):
    return (np.random.default_rng(seed).standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def values(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def saved(path, nodes, inputs, outputs, **weights):
    graph = helper.make_graph(
        nodes, "g", inputs, outputs, [numpy_helper.from_array(w, name) for name, w in weights.items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


def choice(path, shared=False):
    """Two products in each branch of an If; `shared` has both branches read one weight from around them."""
    own = {} if shared else {"wt": random(WIDTH, WIDTH, seed=1), "we": random(WIDTH, WIDTH, seed=2)}
    outer = {"w": random(WIDTH, WIDTH, seed=3)} if shared else {}
    second = {"vt": random(WIDTH, 8, seed=4), "ve": random(WIDTH, 8, seed=5)}

    def branch(end):
        first = "w" if shared else f"w{end}"
        weights = {k: v for k, v in {**own, **second}.items() if k.endswith(end)}
        return helper.make_graph(
            [
                helper.make_node("MatMul", ["x", first], [f"a{end}"], name=f"first_{end}"),
                helper.make_node("Relu", [f"a{end}"], [f"b{end}"]),
                helper.make_node("MatMul", [f"b{end}", f"v{end}"], [f"y{end}"], name=f"second_{end}"),
            ],
            f"branch_{end}",
            [],
            [values(f"y{end}", ["n", 8])],
            [numpy_helper.from_array(w, name) for name, w in weights.items()],
        )

    nodes = [helper.make_node("If", ["c"], ["y"], "choice", then_branch=branch("t"), else_branch=branch("e"))]
    inputs = [values("c", [], TensorProto.BOOL), values("x", ["n", WIDTH])]
    return saved(path, nodes, inputs, [values("y", ["n", 8])], **outer)


def samples(path, conditions):
    x = np.random.default_rng(0).standard_normal((SAMPLES, 1, WIDTH)).astype(np.float32)
    np.savez(path, x=x, c=np.resize(np.array(conditions), SAMPLES))
    return path, x


def decibels(before, after):
    return 10 * np.log10(np.sum(before**2) / np.sum((before - after) ** 2))


def branches(path):
    """The operators of each branch of the If of a file."""
    node = next(n for n in onnx.load(path).graph.node if n.op_type == "If")
    return {a.name: [n.op_type for n in a.g.node] for a in node.attribute}


@pytest.mark.parametrize("shared", [False, True])
def test_both_branches_are_quantised(compress, tmp_path, shared):
    source, output = choice(tmp_path / "in.onnx", shared), tmp_path / "out.onnx"
    data, x = samples(tmp_path / "data.npz", [True, False])
    report = compress(source, "--int8", "--data", data, "-o", output, "--json").json()
    (covered,) = report["coverage"]
    assert (covered["layers"], covered["of_layers"], covered["left"]) == (4, 4, [])
    assert covered["macs"] == 1.0
    assert [layer["precision"] for layer in report["layers"]] == ["int8"] * 4
    onnx.checker.check_model(str(output), full_check=True)
    for c in (True, False):
        feed = {"c": np.array(c), "x": x[:, 0]}
        before, after = run_onnx(source, feed)[0], run_onnx(output, feed, optimise=True)[0]
        assert 20 < decibels(before, after) < 60
    assert all("QuantizeLinear" in ops for ops in branches(output).values())
    # Each branch has codes of its own of what they share.
    assert report["output"]["bytes"] < (0.9 if shared else 0.6) * report["input"]["bytes"]


def test_a_branch_that_calibration_never_ran_is_only_stored_in_16_bits(compress, tmp_path):
    source, output = choice(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    data, x = samples(tmp_path / "data.npz", [True])
    run = compress(source, "--int8", "--data", data, "-o", output, "--json", "-q")
    (covered,) = run.json()["coverage"]
    (left,) = covered["left"]
    assert (covered["layers"], left["layers"]) == (2, 2)
    assert "calibration never ran the branch" in left["reason"]
    found = branches(output)
    assert "QuantizeLinear" in found["then_branch"] and "QuantizeLinear" not in found["else_branch"]
    feed = {"c": np.array(False), "x": x[:, 0]}
    assert sqnr_db(run_onnx(source, feed)[0], run_onnx(output, feed)[0]) > 60


def test_branches_are_taken_sample_by_sample(compress, tmp_path):
    """Which branch a batch takes, its samples together decide: in calibration each is run by itself."""
    source, output = choice(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    model = onnx.load(source)
    model.graph.input.remove(next(i for i in model.graph.input if i.name == "c"))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0), "zero"))
    decides = [
        helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0),
        helper.make_node("Greater", ["mean", "zero"], ["c"]),
    ]
    for node in reversed(decides):
        model.graph.node.insert(0, node)
    onnx.save(model, source)
    x = np.abs(np.random.default_rng(0).standard_normal((SAMPLES, WIDTH))).astype(np.float32)
    # Few enough that any batch takes the branch of the others.
    x[7::8] *= -0.5
    np.savez(tmp_path / "data.npz", x=x)
    report = compress(source, "--int8", "--data", tmp_path / "data.npz", "-o", output, "--json").json()
    (covered,) = report["coverage"]
    assert (covered["layers"], covered["of_layers"]) == (4, 4)
    assert report["accuracy"]["sqnr_db"] < 60, "nothing that is quantised was run"


def test_multiply_accumulates_are_those_of_the_sizes_that_ran(compress, tmp_path):
    source = repeated(tmp_path / "in.onnx")
    np.savez(tmp_path / "data.npz", x=np.ones((SAMPLES, 7, WIDTH), np.float32))
    report = compress(source, "--data", tmp_path / "data.npz", "-o", tmp_path / "out.onnx", "--json").json()
    # Of one repetition, with seven rows.
    assert report["output"]["macs"] == 7 * WIDTH * WIDTH


def test_a_loop_that_never_runs_is_not_measured(compress, tmp_path):
    """Nothing tells the shape of what it would have gathered; the model is simplified all the same."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go2"]), helper.make_node("Exp", ["s"], ["row"]),
         helper.make_node("Identity", ["s"], ["s2"])],
        "body",
        [values("i", [], TensorProto.INT64), values("go", [], TensorProto.BOOL), values("s", None)],
        [values("go2", [], TensorProto.BOOL), values("s2", None), values("row", None)],
    )  # fmt: skip
    nodes = [helper.make_node("Loop", ["times", "", "x"], ["y", "rows"], "never", body=body)]
    source = tmp_path / "in.onnx"
    graph = helper.make_graph(
        nodes,
        "g",
        [values("x", ["n", 4]), values("times", [], TensorProto.INT64)],
        [values("y", None), values("rows", None)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), source)
    np.savez(tmp_path / "data.npz", x=np.ones((8, 1, 4), np.float32), times=np.int64(0))
    report = compress(source, "--data", tmp_path / "data.npz", "-o", tmp_path / "out.onnx", "--json").json()
    assert report["accuracy"] is None or report["accuracy"]["equal"]


def test_a_weight_stays_where_it_is_shared_with_a_branch_that_stays_float(compress, tmp_path):
    """As in decoders with and without a cache: codes beside the floats would make the file larger."""
    source, output = choice(tmp_path / "in.onnx", shared=True), tmp_path / "out.onnx"
    data, x = samples(tmp_path / "data.npz", [True])
    report = compress(source, "--int8", "--data", data, "-o", output, "--json").json()
    (covered,) = report["coverage"]
    # Both branches' first products read it; the second of the branch that ran is quantised.
    assert (covered["layers"], covered["of_layers"]) == (1, 4)
    reasons = {left["reason"]: left["layers"] for left in covered["left"]}
    assert reasons == {
        "its weight is shared with a branch or loop that calibration never ran": 2,
        "calibration never ran the branch or loop that it is inside of": 1,
    }
    floats = [t for t in onnx.load(output).graph.initializer if t.data_type == TensorProto.FLOAT and len(t.dims) == 2]
    assert [list(t.dims) for t in floats] == [[WIDTH, WIDTH]]


def test_a_weight_that_is_read_around_the_branches_too_stays_as_it_is(compress, tmp_path):
    """Nothing of it becomes INT8, so that codes beside the floats don't make the file larger."""
    source, output = choice(tmp_path / "in.onnx", shared=True), tmp_path / "out.onnx"
    model = onnx.load(source)
    model.graph.node.append(helper.make_node("MatMul", ["x", "w"], ["z"], name="around"))
    model.graph.output.append(values("z", ["n", WIDTH]))
    onnx.save(model, source)
    data, _ = samples(tmp_path / "data.npz", [True, False])
    report = compress(source, "--int8", "--data", data, "-o", output, "--json").json()
    (covered,) = report["coverage"]
    assert (covered["layers"], covered["of_layers"]) == (2, 5)
    assert sum(left["layers"] for left in covered["left"] if "shared" in left["reason"]) == 3


def test_a_weight_that_branches_share_is_not_stored_twice(compress, tmp_path):
    source, output = choice(tmp_path / "in.onnx", shared=True), tmp_path / "out.onnx"
    report = compress(source, "-o", output, "--json").json()
    assert report["output"]["parameters"] == report["input"]["parameters"]


def repeated(path):
    """A state that a Loop multiplies by a weight three times, while it gathers what it makes."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["s", "w"], ["m"], name="step"),
            helper.make_node("Tanh", ["m"], ["s2"]),
            helper.make_node("Identity", ["go"], ["go2"]),
            helper.make_node("Identity", ["s2"], ["row"]),
        ],
        "body",
        [values("i", [1], TensorProto.INT64), values("go", [1], TensorProto.BOOL), values("s", ["n", WIDTH])],
        [values("go2", [1], TensorProto.BOOL), values("s2", ["n", WIDTH]), values("row", ["n", WIDTH])],
    )
    nodes = [helper.make_node("Loop", ["times", "", "x"], ["y", "all"], "again", body=body)]
    outputs = [values("y", ["n", WIDTH]), values("all", [3, "n", WIDTH])]
    weights = {"times": np.array(3), "w": 2 * random(WIDTH, WIDTH, seed=7)}
    return saved(path, nodes, [values("x", ["n", WIDTH])], outputs, **weights)


def scanned(path):
    body = helper.make_graph(
        [
            helper.make_node("Gemm", ["e", "w", "b"], ["m"], name="step"),
            helper.make_node("Add", ["m", "s"], ["t"]),
            helper.make_node("Tanh", ["t"], ["s2"]),
            helper.make_node("Identity", ["s2"], ["row"]),
        ],
        "body",
        [values("s", ["n", WIDTH]), values("e", ["n", WIDTH])],
        [values("s2", ["n", WIDTH]), values("row", ["n", WIDTH])],
    )
    nodes = [
        helper.make_node("Unsqueeze", ["x", "zero"], ["one"]),
        helper.make_node("Concat", ["one", "one", "one"], ["sequence"], axis=0),
        helper.make_node("Scan", ["x", "sequence"], ["y", "all"], "walk", body=body, num_scan_inputs=1),
    ]
    outputs = [values("y", ["n", WIDTH]), values("all", [3, "n", WIDTH])]
    weights = {"zero": np.array([0]), "w": random(WIDTH, WIDTH, seed=8), "b": random(WIDTH, seed=9)}
    return saved(path, nodes, [values("x", ["n", WIDTH])], outputs, **weights)


@pytest.mark.parametrize("make", [repeated, scanned])
def test_what_is_repeated_is_quantised(compress, tmp_path, make):
    source, output = make(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    x = np.random.default_rng(0).standard_normal((SAMPLES, WIDTH)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x)
    report = compress(source, "--int8", "--data", tmp_path / "data.npz", "-o", output, "--json").json()
    (covered,) = report["coverage"]
    assert (covered["layers"], covered["of_layers"], covered["macs"]) == (1, 1, 1.0)
    onnx.checker.check_model(str(output), full_check=True)
    before, after = run_onnx(source, {"x": x}), run_onnx(output, {"x": x}, optimise=True)
    for a, b in zip(before, after, strict=True):
        assert 20 < decibels(a, b) < 60
    # What is calibrated is each repetition: the last one's outputs are as near as the first one's.
    assert decibels(before[1][2], after[1][2]) > 20


def handed_on(path, gives=False):
    """A Loop that hands its weight on from one repetition to the next, as Paddle2ONNX writes it; `gives` has the model
    give it back."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["s", "wi"], ["m"], name="step"),
            helper.make_node("Tanh", ["m"], ["s2"]),
            helper.make_node("Identity", ["go"], ["go2"]),
            helper.make_node("Identity", ["wi"], ["wo"]),
            helper.make_node("ReduceSum", ["s2"], ["row"], keepdims=0),
        ],
        "body",
        [
            values("i", [], TensorProto.INT64),
            values("go", [], TensorProto.BOOL),
            values("wi", [WIDTH, WIDTH]),
            values("s", ["n", WIDTH]),
        ],
        [
            values("go2", [], TensorProto.BOOL),
            values("wo", [WIDTH, WIDTH]),
            values("s2", ["n", WIDTH]),
            values("row", []),
        ],
    )
    nodes = [helper.make_node("Loop", ["times", "", "w", "x"], ["same", "y", "sums"], "again", body=body)]
    outputs = [values("y", ["n", WIDTH]), values("sums", [3]), values("same", [WIDTH, WIDTH])][: 3 if gives else 2]
    weights = {"times": np.array(3), "w": 2 * random(WIDTH, WIDTH, seed=7)}
    return saved(path, nodes, [values("x", ["n", WIDTH])], outputs, **weights)


@pytest.mark.parametrize("gives", [False, True])
def test_what_a_loop_hands_on_as_it_is_comes_from_around_it(compress, tmp_path, gives):
    source, output = handed_on(tmp_path / "in.onnx", gives), tmp_path / "out.onnx"
    x = np.random.default_rng(0).standard_normal((SAMPLES, WIDTH)).astype(np.float32)
    compress(source, "-o", output, "-q")
    onnx.checker.check_model(str(output), full_check=True)
    for a, b in zip(run_onnx(source, {"x": x}), run_onnx(output, {"x": x}), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    loop = next(n for n in onnx.load(output).graph.node if n.op_type == "Loop")
    assert (len(loop.input), len(loop.output)) == (3, 2)


def test_a_weight_that_a_loop_hands_on_is_quantised(compress, tmp_path):
    source, output = handed_on(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    x = np.random.default_rng(0).standard_normal((SAMPLES, WIDTH)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x)
    report = compress(source, "--int8", "--data", tmp_path / "data.npz", "-o", output, "--json").json()
    (covered,) = report["coverage"]
    assert (covered["layers"], covered["of_layers"], covered["macs"]) == (1, 1, 1.0)
    before, after = run_onnx(source, {"x": x}), run_onnx(output, {"x": x}, optimise=True)
    assert 20 < decibels(before[0], after[0]) < 60


def test_a_state_whose_shape_changes(compress, tmp_path):
    """A Loop begins with a scalar where its body declares a matrix, as table recognisers do: ONNX Runtime runs it."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go2"]),
            helper.make_node("Add", ["s", "x"], ["s2"]),
        ],
        "body",
        [values("i", [], TensorProto.INT64), values("go", [], TensorProto.BOOL), values("s", ["n", 4])],
        [values("go2", [], TensorProto.BOOL), values("s2", ["n", 4])],
    )
    nodes = [helper.make_node("Loop", ["times", "", "start"], ["y"], "grow", body=body)]
    weights = {"times": np.array(2), "start": np.array(1.0, np.float32)}
    graph = helper.make_graph(
        nodes,
        "g",
        [values("x", ["n", 4])],
        [values("y", None)],
        [numpy_helper.from_array(w, name) for name, w in weights.items()],
    )
    source, output = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), source)
    report = compress(source, "-o", output, "--json").json()
    assert report["accuracy"]["equal"]
    feed = {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}
    np.testing.assert_array_equal(run_onnx(output, feed)[0], run_onnx(source, feed)[0])
