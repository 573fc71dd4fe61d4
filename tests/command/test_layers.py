"""`--layer`: forms of single layers, beside ONNX Runtime."""

import numpy as np
import onnx
import pytest
import small
from onnx import TensorProto, helper, numpy_helper
from support import ROOT, read_report, session

WIDTHS = [64, 96, 64, 32]


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    """Three products with functions between them, and data."""
    folder = tmp_path_factory.mktemp("layers")
    rng = np.random.default_rng(3)
    nodes, weights, x = [], [], "x"
    for i, (inputs, outputs) in enumerate(zip(WIDTHS, WIDTHS[1:], strict=False)):
        weights.append(numpy_helper.from_array(rng.normal(0, 0.2, (inputs, outputs)).astype(np.float32), f"w{i}"))
        nodes.append(helper.make_node("MatMul", [x, f"w{i}"], [f"p{i}"], f"product{i}"))
        nodes.append(helper.make_node("Tanh", [f"p{i}"], [x := f"t{i}"]))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "net",
        [value("x", TensorProto.FLOAT, ["n", WIDTHS[0]])],
        [value(x, TensorProto.FLOAT, ["n", WIDTHS[-1]])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "net.onnx")
    np.savez(folder / "data.npz", x=rng.normal(size=(300, WIDTHS[0])).astype(np.float32))
    return folder / "net.onnx", folder / "data.npz"


def weights_of(path):
    """The type that the weight of each product is stored in."""
    graph = onnx.load(path).graph
    stored = {i.name: i.data_type for i in graph.initializer}
    made_by = {name: node for node in graph.node for name in node.output}

    def kind(name):
        while name not in stored:
            name = made_by[name].input[0]
        return TensorProto.DataType.Name(stored[name])

    products = [n for n in graph.node if n.op_type == "MatMul"]
    reads_codes = [
        made_by.get(n.input[0]) is not None and made_by[n.input[0]].op_type == "DequantizeLinear" for n in products
    ]
    return [kind(n.input[1]) for n in products], reads_codes


def test_each_layer_has_its_form(compress, net, tmp_path):
    model, data = net
    out = tmp_path / "out.onnx"
    rules = ["--layer", "^product0$=weights-int4", "--layer", "product[01]=float"]
    report = compress(model, "--int8", "--effort", "quick", *rules, "--data", data, "-o", out, "--json").json()
    kinds, codes = weights_of(out)
    # The first rule that matches holds. What the user wants in floats is stored in 16 bits where that is near enough.
    assert kinds[0] in ("INT4", "UINT4") and kinds[1] in ("FLOAT", "FLOAT16") and kinds[2] == "INT8"
    assert codes == [False, False, True]
    left = {
        (left["layers"], left["reason"]) for c in report["coverage"] if c["request"] == "int8" for left in c["left"]
    }
    assert left == {(1, "--layer says weights-int4"), (1, "--layer says float")}
    x = np.load(data)["x"][:32]
    a, b = (session(path).run(None, {"x": x})[0] for path in (model, out))
    assert 10 * np.log10((a**2).sum() / ((a - b) ** 2).sum()) > 15


def test_a_rule_may_be_all_that_is_asked_for(compress, net, tmp_path):
    model, data = net
    out = tmp_path / "out.onnx"
    compress(model, "--layer", "w2=weights-int8", "--data", data, "-o", out)
    kinds, _ = weights_of(out)
    assert kinds[:2] == ["FLOAT", "FLOAT"] and kinds[2] in ("INT8", "UINT8")
    # A recipe has the rule as it was given.
    assert read_report(tmp_path / "out.report.json")["recipe"]["run"]["layer"] == ["w2=weights-int8"]


def test_all_but_one_in_four_bits(compress, net, tmp_path):
    model, data = net
    out = tmp_path / "out.onnx"
    compress(model, "--weights", "int4", "--layer", "^product2$=weights-int8", "--layer", "w0=float", "-o", out)
    kinds, _ = weights_of(out)
    assert kinds[0] == "FLOAT" and kinds[1] in ("INT4", "UINT4") and kinds[2] in ("INT8", "UINT8")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--int8", "--layer", "product0"], "not an expression and a form"),
        (["--int8", "--layer", "product0=int5"], "forms: float, int8, weights-int8, weights-int4"),
        (["--int8", "--layer", "(=float"], "regex parse error"),
        (["--int8", "--layer", "nothing=float"], "--layer nothing matches no node and no weight"),
        (["--layer", "product0=int8"], "needs --int8 or --qat"),
        (["--layer", "product0=float"], "needs --int8, --qat or --weights"),
        (["--qat", "--layer", "product0=weights-int4"], "exclude each other"),
    ],
)
def test_rules_that_say_nothing_are_refused(compress, net, tmp_path, args, says):
    model, data = net
    result = compress(model, *args, "--data", data, "-o", tmp_path / "out.onnx", code=2)
    assert says in result.err and not (tmp_path / "out.onnx").exists()


def test_what_has_no_matrix_stays_and_is_told(compress, tmp_path):
    digits = ROOT / "models/digits"
    out = tmp_path / "out.onnx"
    args = ["--layer", "conv1=weights-int4", "--data", digits / "train.npz", "-o", out, "--json"]
    report = compress(digits / "digits.onnx", "--int8", "--effort", "quick", *args).json()
    assert any("asked for --layer weights-int4" in u and "only products" in u for u in report["undone"]), report[
        "undone"
    ]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Two products by one weight, as in encoders whose layers share theirs, and a third."""
    rng = np.random.default_rng(4)
    weights = {name: rng.normal(0, 0.2, (64, 64)) for name in ("w", "v")}
    made = small.model(
        [
            small.node("MatMul", "x w", "a", name="first"),
            small.node("Tanh", "a", "b"),
            small.node("MatMul", "b w", "c", name="second"),
            small.node("MatMul", "c v", "y", name="third"),
        ],
        [("x", ["n", 64])],
        [("y", ["n", 64])],
        {name: values.astype(np.float32) for name, values in weights.items()},
    )
    path = tmp_path_factory.mktemp("shared") / "shared.onnx"
    onnx.save(made, path)
    return path


@pytest.mark.parametrize(
    "stays",
    [["--exclude", "^second$"], ["--exclude", "^first$"], ["--layer", "^second$=float"], ["--layer", "^first$=float"]],
)
def test_a_shared_weight_stays_where_one_of_its_layers_has_to(compress, shared, tmp_path, stays):
    out = tmp_path / "out.onnx"
    report = compress(shared, "--weights", "int4", *stays, "-o", out, "--json").json()
    kinds, _ = weights_of(out)
    assert kinds[:2] == ["FLOAT", "FLOAT"] and kinds[2] in ("INT4", "UINT4")
    [covered] = [c for c in report["coverage"] if c["request"] == "weights"]
    assert (covered["layers"], covered["of_layers"]) == (1, 3)
    assert {left["reason"].split("`")[0] for left in covered["left"]} >= {"its weight is shared with "}
    compress(shared, "--weights", "int4", "-o", out, "--force")
    assert set(weights_of(out)[0]) <= {"INT4", "UINT4"}
