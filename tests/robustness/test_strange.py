"""Operators we don't know: kept as they are, named in the report, and no obstacle to the rest."""

import numpy as np
import onnx
import pytest
import small
from onnx import TensorProto, helper
from small import node
from support import assert_close, listing, run_onnx


def around(strange, domains=(), opset=17, outputs=("s",), **rest):
    """A layer, the strange node from `h` to `s`, and another layer."""
    return small.model(
        [
            node("MatMul", "x w", "m"),
            node("Add", "m b", "h", "add"),
            strange,
            node("Identity", "s", "i"),
            node("MatMul", "i v", "y", "last"),
        ],
        [("x", ["n", 6])],
        [("y", ["n", 2])],
        {"w": small.floats(1, 6, 4), "b": small.floats(2, 4), "v": small.floats(3, 4, 2)} | rest.get("weights", {}),
        opset=opset,
        domains=domains,
    )


def the_node(path, name="odd"):
    """The strange node in a file."""
    return next(n for n in onnx.load(path).graph.node if n.name == name)


STRANGE = {
    "unknown_operator": around(node("Frobnicate", "h", "s", "odd", depth=3, how="gently")),
    "unknown_domain": around(
        helper.make_node("Attention", ["h"], ["s"], name="odd", domain="com.example", heads=2), [("com.example", 1)]
    ),
    "known_name_in_another_domain": around(
        helper.make_node("Relu", ["h"], ["s"], name="odd", domain="com.example"), [("com.example", 1)]
    ),
    "unknown_attribute": around(node("Relu", "h", "s", "odd", speed=11)),
}


@pytest.mark.parametrize("name", STRANGE)
def test_strange_nodes_are_kept_byte_for_byte(compress, tmp_path, name):
    path = small.save(STRANGE[name], tmp_path)
    report = compress(path, "--json").json()
    output = tmp_path / "model.compressed.onnx"
    before, after = the_node(path), the_node(output)
    assert after.SerializeToString() == before.SerializeToString()
    # The rest was simplified.
    assert "Identity" not in small.ops(output) and small.ops(output).count("Gemm") == 1
    assert any("odd" in w for w in report["warnings"])
    assert report["accuracy"] is None and report["speed"] is None
    facts = compress("inspect", path, "--json").json()
    assert [o[0] for o in facts["opaque"]] == ["odd"]


@pytest.mark.parametrize("name", STRANGE)
def test_measuring_needs_to_run_the_model(compress, tmp_path, name):
    path = small.save(STRANGE[name], tmp_path)
    before = listing(tmp_path)
    assert "odd" in compress("check", path, "--against", path, code=5).err
    assert "odd" in compress("bench", path, code=5).err
    assert listing(tmp_path) == before


def test_pruning_needs_no_run(compress, tmp_path):
    path = small.save(STRANGE["unknown_operator"], tmp_path)
    compress(path, "--prune", "0.5", "--prune-ends")
    weights = small.initializers(tmp_path / "model.compressed.onnx")
    assert sum((w == 0).sum() for w in weights.values()) == 16
    assert the_node(tmp_path / "model.compressed.onnx") == the_node(path)


def test_gates_that_cannot_be_measured_are_7(compress, tmp_path):
    path = small.save(STRANGE["unknown_operator"], tmp_path)
    for gate in (["--max-drop", "1%"], ["--min-speedup", "1"]):
        before = listing(tmp_path)
        assert gate[0] in compress(path, *gate, code=7).err
        assert listing(tmp_path) == before
    compress(path, "--max-size", "1MB")


def branch(name, nodes, output):
    """A subgraph without inputs."""
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)])


def test_subgraphs_see_what_they_saw(compress, tmp_path):
    """The branches of an If read outer values by name, some of which the passes would remove."""
    made = small.model(
        [
            node("ReduceSum", "x", "total", keepdims=0),
            node("Greater", "total zero", "positive"),
            node("Identity", "x", "kept"),
            node("Mul", "two three", "six"),
            node("MatMul", "x w", "m"),
            node("Add", "m b", "sum"),
            node(
                "If",
                "positive",
                "y",
                "odd",
                then_branch=branch("then", [node("Mul", "kept six", "t"), node("Add", "t sum", "t2")], "t2"),
                else_branch=branch("else", [node("Sub", "kept b", "e"), node("Neg", "e", "e2")], "e2"),
            ),
        ],
        [("x", ["n", 4])],
        [("y", ["n", 4])],
        {
            "zero": np.float32(0),
            "two": np.float32([2]),
            "three": np.float32([3]),
            "w": small.floats(1, 4, 4),
            "b": small.floats(2, 4),
        },
    )
    path = small.save(made, tmp_path)
    for flags in ([], ["--prune", "0.1"]):
        output = tmp_path / "out.onnx"
        compress(path, "-o", output, "--force", *flags)
        onnx.checker.check_model(str(output), full_check=True)
        for sign in (1, -1):
            x = np.abs(small.floats(3, 5, 4)) * np.float32(sign)
            got, expected = run_onnx(output, {"x": x}), run_onnx(path, {"x": x})
            if not flags:
                assert_close(got, expected)
            assert got[0].shape == expected[0].shape


def test_loops_and_shadowless_names(compress, tmp_path):
    """A Loop whose body reads outer values."""
    body = helper.make_graph(
        [node("Add", "state step", "next"), node("Identity", "going", "still"), node("Mul", "next w", "seen")],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [2]),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("seen", TensorProto.FLOAT, [2]),
        ],
    )
    made = small.model(
        [
            node("Mul", "half half", "step"),
            node("Identity", "x", "start"),
            node("Loop", "times yes start", "last all", "odd", body=body),
        ],
        [("x", [2])],
        [("last", [2]), ("all", ["t", 2])],
        {"half": np.float32([0.5]), "times": np.array(3, np.int64), "yes": np.array(True), "w": small.floats(1, 2)},
    )
    path = small.save(made, tmp_path)
    compress(path)
    output = tmp_path / "model.compressed.onnx"
    onnx.checker.check_model(str(output), full_check=True)
    x = small.floats(2, 2)
    assert_close(run_onnx(output, {"x": x}), run_onnx(path, {"x": x}))


def test_an_attribute_of_an_old_opset_becomes_an_input(compress, tmp_path):
    """TopK of opset 9 has its k as an attribute, that of newer ones as an input."""
    made = small.model(
        [node("Clip", "x", "c", min=0.0, max=1.0), node("TopK", "c", "v i", "odd", k=2)],
        [("x", [1, 6])],
        [("v", [1, 2]), ("i", [1, 2], TensorProto.INT64)],
        opset=9,
        ir=4,
    )
    path = small.save(made, tmp_path)
    compress(path)
    out = tmp_path / "model.compressed.onnx"
    onnx.checker.check_model(str(out), full_check=True)
    x = small.floats(1, 1, 6)
    assert_close(run_onnx(out, {"x": x}), run_onnx(path, {"x": x}))


def test_already_quantised_models(compress, tmp_path):
    """--int8 twice is refused; simplifying what is quantised keeps it so."""
    path = small.save(small.cnn(), tmp_path)
    once = tmp_path / "once.onnx"
    compress(path, "--int8", "-o", once)
    assert "quantised already" in compress(once, "--int8", code=5).err
    again = tmp_path / "again.onnx"
    report = compress(once, "-o", again, "--json").json()
    x = small.floats(1, 3, 3, 12, 12)
    assert_close(run_onnx(again, {"input": x}), run_onnx(once, {"input": x}))
    assert small.ops(again).count("QuantizeLinear") == small.ops(once).count("QuantizeLinear")
    assert report["output"]["bytes"] <= report["input"]["bytes"] + 200


def test_simplifying_twice_changes_nothing(compress, tmp_path):
    path = small.save(small.cnn(), tmp_path)
    compress(path, "-o", tmp_path / "a.onnx")
    report = compress(tmp_path / "a.onnx", "-o", tmp_path / "b.onnx", "--json").json()
    assert sum(p["edits"] for p in report["passes"]) == 0
    assert onnx.load(tmp_path / "a.onnx").graph == onnx.load(tmp_path / "b.onnx").graph


def test_nothing_to_compress_is_said(compress, tmp_path):
    made = small.model([node("Relu", "x", "y")], [("x", [2, 3])], [("y", [2, 3])])
    path = small.save(made, tmp_path)
    report = compress(path, "--int8", "--prune", "0.5", "--json").json()
    assert any("--int8: nothing was quantised: " in w for w in report["warnings"])
    assert any("--prune 0.5: nothing was pruned: " in w for w in report["warnings"])


def test_unquantisable_layers_are_named_with_reasons(compress, tmp_path):
    weight = small.floats(1, 4, 4)
    made = small.model(
        [node("Gemm", "x w b", "g", "scaled", alpha=0.5), node("MatMul", "g v", "y", "broken")],
        [("x", ["n", 4])],
        [("y", ["n", 4])],
        {"w": weight, "b": small.floats(2, 4), "v": np.where(np.eye(4, dtype=bool), np.float32(np.nan), weight)},
    )
    path = small.save(made, tmp_path)
    report = compress(path, "--int8", "--json", code=(0, 7)).json()
    reasons = {s["node"]: s["reason"] for p in report["passes"] for s in p["skipped"] if p["name"] == "int8"}
    assert "NaN" in reasons["broken"]


def batch_norm_of_opset_8():
    """A node that is not understood, and means nothing from opset 9 on."""
    return node("BatchNormalization", "h g c m v", "b", "odd", spatial=0)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax", "Clip", "Squeeze", "Split", "Dropout", "TopK"])
def test_what_would_need_a_newer_opset_is_kept_beside_what_forbids_it(compress, tmp_path, op):
    """Whose own last form is of opset 10 to 13."""
    attributes = {"Clip": {"min": 0.1, "max": 1.0}, "Squeeze": {"axes": [0]}, "TopK": {"k": 2}}.get(op, {})
    outputs = {"Split": "y z", "TopK": "y z"}.get(op, "y")
    made = small.model(
        [node("Relu", "x", "h"), batch_norm_of_opset_8(), node(op, "h", outputs, "newer", **attributes)],
        [("x", [1, 4])],
        [("y", None), ("b", None)],
        {"g": small.floats(1, 4), "c": small.floats(2, 4), "m": small.floats(3, 4), "v": np.ones(4, np.float32)},
        opset=8,
        ir=3,
    )
    path = small.save(made, tmp_path)
    compress(path)
    output = tmp_path / "model.compressed.onnx"
    assert small.opset(output) == 8
    assert the_node(output, "newer").SerializeToString() == made.graph.node[2].SerializeToString()
    assert the_node(output).op_type == "BatchNormalization"


def test_opsets_that_nothing_reconciles_name_both_operators(compress, tmp_path):
    """A function of an older opset than the model's, with an operator that changed since."""
    made = small.model(
        [helper.make_node("F", ["x"], ["y"], name="call", domain="mine")],
        [("x", [2, 6])],
        [("y", None)],
        opset=17,
        domains=[("mine", 1)],
    )
    body = [node("TopK", "a", "v i", "inner", k=2, frob=2)]
    made.functions.append(helper.make_function("mine", "F", ["a"], ["v"], body, [helper.make_opsetid("", 9)]))
    error = compress(small.save(made, tmp_path), code=5).err
    assert "inner" in error and "of opset 9" in error and "the model is of opset 17" in error


def test_squeeze_stays_beside_a_softmax_over_several_axes(compress, tmp_path):
    """Of opset 12 and below the one, of 13 and above the other's newest form."""
    made = small.model(
        [node("Softmax", "x", "s", axis=1), node("Squeeze", "s", "q", axes=[-4]), node("Split", "q", "y z", axis=-1)],
        [("x", [1, 2, 3, 4])],
        [("y", None), ("z", None)],
        opset=11,
    )
    path = small.save(made, tmp_path)
    compress(path)
    output = tmp_path / "model.compressed.onnx"
    assert small.opset(output) == 11
    x = {"x": small.floats(1, 1, 2, 3, 4)}
    for got, expected in zip(run_onnx(output, x), run_onnx(path, x), strict=True):
        assert_close(got, expected)


@pytest.mark.parametrize("declared", [[5, 4], [1, 4], ["n", 1], [0, 4], [3], [3, 4]])
@pytest.mark.parametrize("op", ["Trilu", "Compress"])
def test_nothing_is_concluded_from_shapes_that_nobody_can_check(compress, tmp_path, op, declared):
    """Those of a node that is not understood, or that depend on data; nor are they lost."""
    strange = {
        "Trilu": helper.make_node("Trilu", ["x"], ["u"], name="odd", domain="com.microsoft"),
        "Compress": node("Compress", "x c", "u", "odd", axis=0),
    }
    made = small.model(
        [
            strange[op],
            node("Shape", "u", "shape"),
            node("Size", "u", "size"),
            node("Expand", "one shape", "expanded"),
            node("Reshape", "u flat", "r"),
            node("Reshape", "r columns", "turned"),
        ],
        [("x", ["n", 4]), ("c", ["n"], TensorProto.BOOL)],
        [("shape", [None], TensorProto.INT64), ("size", [], TensorProto.INT64), ("expanded", None), ("turned", None)],
        {"one": np.float32(1), "flat": np.array([-1]), "columns": np.array([2, -1])},
        domains=[("com.microsoft", 1)],
    )
    made.graph.value_info.append(helper.make_tensor_value_info("u", TensorProto.FLOAT, declared))
    path, output = small.save(made, tmp_path), tmp_path / "model.compressed.onnx"
    # Where something can be checked, it is.
    if compress(path, code=(0, 3) if op == "Compress" else 0).code == 3:
        assert declared not in ([5, 4], [1, 4], [3, 4])
        return
    feeds = {"x": small.floats(1, 3, 4), "c": np.array([True, False, True])}
    for got, expected in zip(run_onnx(output, feeds), run_onnx(path, feeds), strict=True):
        assert got.tolist() == expected.tolist()
    if op == "Trilu":
        assert [v for v in onnx.load(output).graph.value_info if v.name == "u"] == list(made.graph.value_info)


def test_the_shape_declared_of_an_output_is_kept(compress, tmp_path):
    """Though nothing here knows it."""
    made = around(helper.make_node("Odd", ["h"], ["s"], name="odd", domain="com.example"), [("com.example", 1)])
    made.graph.node[-1].CopyFrom(node("Relu", "i", "y"))
    compress(small.save(made, tmp_path))
    assert onnx.load(tmp_path / "model.compressed.onnx").graph.output == made.graph.output
