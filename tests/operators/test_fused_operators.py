"""What ONNX Runtime's optimiser fuses, FusedConv, BiasGelu, Attention and so on: read as what it means."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
import small
from onnx import TensorProto, helper
from small import floats, node
from support import assert_close, run_onnx, session

HIDDEN, HEADS = 12, 3
LOWEST = float(np.finfo(np.float32).min)


@dataclass
class Case:
    """One operator, and what it is given. Inputs are (shape as declared, values)."""

    op: str
    names: str
    inputs: dict
    weights: dict = field(default_factory=dict)
    outputs: str = "y"
    attributes: dict = field(default_factory=dict)
    domain: str = "com.microsoft"
    opset: int = 13
    integers: tuple = ()
    layers: int = 0

    def model(self):
        """The operator, and another behind each of its outputs."""
        asked = [o for o in self.outputs.split(" ") if o]
        fused = helper.make_node(
            self.op, self.names.split(" "), self.outputs.split(" "), "the_node", domain=self.domain, **self.attributes
        )
        return small.model(
            [fused, *(node("Neg", o, f"{o}_out") for o in asked)],
            [(k, shape, helper.np_dtype_to_tensor_dtype(v.dtype)) for k, (shape, v) in self.inputs.items()],
            [(f"{o}_out", None, TensorProto.INT32 if o in self.integers else TensorProto.FLOAT) for o in asked],
            self.weights,
            opset=self.opset,
            domains=[("com.microsoft", 1)],
        )

    def feeds(self):
        return {k: v for k, (_, v) in self.inputs.items()}


def dynamic(*shape):
    """A value of three axes, batch and length left open."""
    return ["batch", "length", *shape[2:]], floats(sum(shape), *shape)


def mask(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 2, shape).astype(np.int32)


def layers():
    images = {"x": (["batch", 3, 8, 8], floats(1, 2, 3, 8, 8))}
    weights = {"w": floats(2, 6, 3, 3, 3), "b": floats(3, 6)}
    sum_of = {**images, "z": (["batch", 6, 8, 8], floats(4, 2, 6, 8, 8))}
    parameters = {"LeakyRelu": [0.2], "Clip": [-0.5, 0.7], "HardSigmoid": [0.3, 0.4]}
    for name, given in {"Relu": [], "Tanh": [], "Sigmoid": [], **parameters}.items():
        attributes = {"activation": name, "pads": [1] * 4}
        if given:
            attributes["activation_params"] = given
        yield f"conv-{name}", Case("FusedConv", "x w b", images, weights, attributes=attributes, layers=1)
        yield f"conv-sum-{name}", Case("FusedConv", "x w b z", sum_of, weights, attributes=attributes, layers=1)
    bare = {"w": weights["w"]}
    attributes = {"activation": "Relu", "pads": [1] * 4}
    yield "conv-without-bias", Case("FusedConv", "x w", images, bare, attributes=attributes, layers=1)
    yield "conv-sum-without-bias", Case("FusedConv", "x w  z", sum_of, bare, attributes=attributes, layers=1)

    rows = {"x": (["batch", HIDDEN], floats(1, 5, HIDDEN))}
    weights = {"w": floats(2, HIDDEN, 4), "b": floats(3, 4)}
    parameters = {
        **{name: {} for name in ("Relu", "Tanh", "Sigmoid", "Softplus", "Softsign")},
        "LeakyRelu": {"alpha": 0.2},
        "Elu": {"alpha": 0.7},
        "Celu": {"alpha": 0.7},
        "ThresholdedRelu": {"alpha": 0.5},
        "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
        "Selu": {"alpha": 1.1, "gamma": 1.2},
    }
    for name, own in parameters.items():
        attributes = {"activation": name, "alpha": 0.5, "beta": 2.0, **{f"activation_{k}": v for k, v in own.items()}}
        yield f"gemm-{name}", Case("FusedGemm", "x w b", rows, weights, attributes=attributes, layers=1)
    attributes, weights = {"activation": "Relu", "transB": 1}, {"w": floats(2, 4, HIDDEN)}
    yield "gemm-transposed", Case("FusedGemm", "x w", rows, weights, attributes=attributes, layers=1)

    x = {"a": dynamic(2, 5, HIDDEN)}
    for name, shape, attributes in [
        ("scaled", (HIDDEN, 4), {"alpha": 0.5}),
        ("transposed", (4, HIDDEN), {"transB": 1}),
    ]:
        weights = {"b": floats(2, *shape)}
        yield f"matmul-{name}", Case("FusedMatMul", "a b", x, weights, attributes=attributes, layers=1)
    b = {"b": floats(3, 2, 4, HIDDEN)}
    yield "matmul-old", Case("TransposeMatMul", "a b", x, b, attributes={"transB": 1, "alpha": 3.0}, layers=1)
    for name, a, b, attributes in [
        ("rows", (2, HIDDEN, 5), (2, HIDDEN, 4), {"transA": 1}),
        ("first-rows", (5, 2, HIDDEN), (2, HIDDEN, 4), {"transBatchA": 1}),
        ("first-rows-transposed", (HIDDEN, 2, 3, 5), (2, 3, HIDDEN, 4), {"transBatchA": 1, "transA": 1}),
        ("first-columns", (2, 5, HIDDEN), (HIDDEN, 2, 4), {"transBatchB": 1}),
        ("first-columns-transposed", (2, 3, 5, HIDDEN), (4, 2, 3, HIDDEN), {"transBatchB": 1, "transB": 1}),
    ]:
        inputs = {"a": (list(a), floats(1, *a)), "b": (list(b), floats(2, *b))}
        yield f"matmul-{name}", Case("FusedMatMul", "a b", inputs, attributes=attributes)


def activations():
    x, b = {"x": dynamic(2, 5, HIDDEN)}, {"b": floats(3, HIDDEN)}
    yield "gelu", Case("Gelu", "x", x)
    yield "bias-gelu", Case("BiasGelu", "x b", x, b)
    yield "fast-gelu", Case("FastGelu", "x", x)
    yield "fast-gelu-bias", Case("FastGelu", "x b", x, b)
    yield "quick-gelu", Case("QuickGelu", "x", x)
    yield "quick-gelu-alpha", Case("QuickGelu", "x", x, attributes={"alpha": 0.5})


def norms():
    x = {"x": dynamic(2, 5, HIDDEN)}
    weights = {"g": floats(3, HIDDEN), "b": floats(4, HIDDEN), "c": floats(5, HIDDEN)}
    two = {"g": weights["g"], "b": weights["b"]}
    three = {"g": weights["g"], "c": weights["c"]}
    for name, skip in [("", ["batch", "length", HIDDEN]), ("-row", [1, 5, HIDDEN]), ("-matrix", [5, HIDDEN])]:
        shape = [n if isinstance(n, int) else {"batch": 2, "length": 5}[n] for n in skip]
        inputs = {"x": ([2, 5, HIDDEN], x["x"][1]), "s": (shape, floats(6, *shape))}
        yield f"skip{name}", Case("SkipLayerNormalization", "x s g b", inputs, two)
    inputs = {**x, "s": dynamic(2, 5, HIDDEN)}
    sums, epsilon = "y   sum", {"epsilon": 0.01}
    yield "skip-bias-sum", Case("SkipLayerNormalization", "x s g b c", inputs, weights, sums, epsilon)
    yield "skip-without-shift", Case("SkipLayerNormalization", "x s g  c", inputs, three, sums)
    yield "skip-rms", Case("SkipSimplifiedLayerNormalization", "x s g", inputs, {"g": weights["g"]})
    yield "skip-rms-bias-sum", Case("SkipSimplifiedLayerNormalization", "x s g b", inputs, two, sums, epsilon)
    for name, axis, g in [("last", -1, (HIDDEN,)), ("two", 1, (5, HIDDEN))]:
        own = {"x": (["batch", 5, HIDDEN], x["x"][1])}
        attributes = {"axis": axis, "epsilon": 0.01}
        yield (
            f"rms-{name}",
            Case("SimplifiedLayerNormalization", "x g", own, {"g": floats(3, *g)}, attributes=attributes, domain=""),
        )
    attributes = {"axis": -1, "epsilon": 0.01}
    yield "old-layer-norm", Case("LayerNormalization", "x g b", x, two, attributes=attributes, domain="")

    rng = np.random.default_rng(1)
    ids = {"ids": (["batch", "length"], rng.integers(0, 20, (2, 5)).astype(np.int32))}
    segments = {"seg": (["batch", "length"], rng.integers(0, 2, (2, 5)).astype(np.int32))}
    masked = {"mask": (["batch", "length"], np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 2]], np.int32))}
    plain = {"we": floats(1, 20, HIDDEN), "pe": floats(2, 9, HIDDEN), **two}
    tables = {**plain, "se": floats(3, 2, HIDDEN)}
    op = "EmbedLayerNormalization"
    all_three, whole = "ids seg we pe se g b mask", {**ids, **segments, **masked}
    yield "embed", Case(op, all_three, whole, tables, "y m e", {"epsilon": 1e-12}, integers=("m",))
    yield "embed-words-alone", Case(op, "ids  we pe  g b", ids, plain, "y m", integers=("m",))
    for name, rows in [("", 2), ("-shared", 1)]:
        numbers = {"pos": ([rows, 5], rng.integers(0, 9, (rows, 5)).astype(np.int32))}
        inputs = {**ids, **segments, **numbers}
        yield f"embed-positions{name}", Case(op, "ids seg we pe se g b  pos", inputs, tables, "y  e")


def attentions():
    x = {"x": dynamic(2, 5, HIDDEN)}
    weights = {"w": floats(1, HIDDEN, 3 * HIDDEN, scale=0.5), "b": floats(2, 3 * HIDDEN)}
    heads, causal = {"num_heads": HEADS}, {"num_heads": HEADS, "unidirectional": 1}
    masks = {
        "keys": (["batch", "length"], mask(2, 5)),
        "no-keys": (["batch", "length"], mask(2, 5) * 0),
        "pairs": (["batch", "length", "length"], mask(2, 5, 5)),
        "ends": (["batch"], np.array([3, 5], np.int32)),
    }

    def case(names, inputs, attributes, outputs="y", weights=weights):
        return Case("Attention", names, {**x, **inputs}, weights, outputs, attributes, layers=1)

    yield "attention", case("x w b", {}, heads)
    yield "attention-scale", case("x w b", {}, {**heads, "scale": 0.3})
    yield "attention-causal", case("x w b", {}, causal)
    sizes = {"w": floats(1, HIDDEN, 30, scale=0.5), "b": floats(2, 30)}
    yield "attention-sizes", case("x w b", {}, {**heads, "qkv_hidden_sizes": [12, 12, 6]}, weights=sizes)
    for name, given in masks.items():
        for kind, attributes in [("", heads), ("-causal", causal)]:
            yield f"attention-{name}{kind}", case("x w b m", {"m": given}, attributes)
            for value in (-3.0, LOWEST):
                filtered = {**attributes, "mask_filter_value": value}
                yield f"attention-{name}{kind}{value:.0e}", case("x w b m", {"m": given}, filtered)
    both = {"x": ([2, 5, HIDDEN], x["x"][1]), "m": ([4], np.array([3, 5, 1, 2], np.int32))}
    yield "attention-ends-and-starts", case("x w b m", both, heads)
    # Of a row that is hidden as a whole, scores around -10000 are equal to a thousandth only: their sums depend on the order.
    seen = mask(2, 5)
    seen[:, 0] = 1
    for shape in [(2, 3, 5, 5), (1, 3, 5, 5), (1, 1, 5, 5)]:
        added = {"x": ([2, 5, HIDDEN], x["x"][1]), "added": (list(shape), floats(3, *shape)), "m": ([2, 5], seen)}
        yield f"attention-added-{shape[0]}{shape[1]}", case("x w b m  added", added, causal)
    past = {"past": ([2, "batch", HEADS, "past", 4], floats(4, 2, 2, HEADS, 4, 4))}
    yield "attention-past", case("x w b  past", past, heads, "y present")
    masked = {**past, "m": (["batch", "total"], mask(2, 9))}
    yield "attention-past-causal", case("x w b m past", masked, causal, "y present")
    yield "attention-present", case("x w b", {}, causal, "y present")


def multi_head():
    inputs = {
        "q": (["batch", "length", HIDDEN], floats(1, 2, 5, HIDDEN)),
        "k": (["batch", "keys", HIDDEN], floats(2, 2, 7, HIDDEN)),
        "v": (["batch", "keys", 18], floats(3, 2, 7, 18)),
    }
    alike = {k: (["batch", "length", HIDDEN], floats(i, 2, 5, HIDDEN)) for i, k in enumerate("qkv")}
    heads, causal = {"num_heads": HEADS}, {"num_heads": HEADS, "unidirectional": 1}
    bias, same = {"b": floats(4, 42)}, {"b": floats(4, 36)}

    def case(names, inputs, weights, attributes, outputs="y"):
        return Case("MultiHeadAttention", names, inputs, weights, outputs, attributes)

    yield "heads", case("q k v", inputs, {}, heads)
    yield "heads-bias", case("q k v b", inputs, bias, {**heads, "scale": 0.1})
    yield "heads-causal", case("q k v b", alike, same, causal)
    for name, given in {
        "keys": (["batch", "keys"], mask(2, 7)),
        "pairs": (["batch", "length", "keys"], mask(2, 5, 7)),
        "ends": (["batch"], np.array([3, 7], np.int32)),
    }.items():
        yield f"heads-{name}", case("q k v b m", {**inputs, "m": given}, bias, heads)
    added = {**inputs, "added": ([1, HEADS, "length", "keys"], floats(5, 1, HEADS, 5, 7))}
    yield "heads-added", case("q k v   added", added, {}, heads)
    apart = {k: (["batch", HEADS, "keys", 4], floats(i, 2, HEADS, 7, 4)) for i, k in enumerate("kv")}
    yield "heads-apart", case("q k v  m", {**inputs, **apart, "m": (["batch", "keys"], mask(2, 7))}, {}, heads)
    past = {k: (["batch", HEADS, "past", 4], floats(i, 2, HEADS, 4, 4)) for i, k in enumerate(("pk", "pv"))}
    yield "heads-past", case("q k v b   pk pv", {**alike, **past}, same, causal, "y keys values")
    yield "heads-present", case("q k v", alike, {}, heads, "y keys values")


def integers():
    x = {"a": dynamic(2, 5, HIDDEN)}
    rng = np.random.default_rng(0)
    for dtype in (np.uint8, np.int8):
        info = np.iinfo(dtype)
        codes = {"w": rng.integers(info.min, info.max, (HIDDEN, 4)).astype(dtype)}
        for name, scale, zero in [
            ("tensor", np.float32(0.02), dtype(3)),
            ("channel", floats(1, 4) ** 2, rng.integers(info.min, info.max, 4).astype(dtype)),
        ]:
            weights = {**codes, "s": scale, "z": zero, "c": floats(2, 4)}
            label = f"{dtype.__name__}-{name}"
            yield f"dynamic-{label}", Case("DynamicQuantizeMatMul", "a w s z c", x, weights, layers=1)
            given = {"a": (["batch", 5, HIDDEN], rng.integers(0, 255, (2, 5, HIDDEN)).astype(np.uint8))}
            weights = {**weights, "as": np.float32(0.03), "az": np.uint8(5)}
            yield f"float-{label}", Case("MatMulIntegerToFloat", "a w as s az z c", given, weights, layers=1)
        bare = {**codes, "s": np.float32(0.02)}
        yield f"dynamic-{dtype.__name__}-bare", Case("DynamicQuantizeMatMul", "a w s", x, bare, layers=1)


CASES = [*layers(), *activations(), *norms(), *attentions(), *multi_head(), *integers()]


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES])
def test_what_is_fused_is_read_as_what_it_means(compress, tmp_path, case):
    """No operator of ONNX Runtime's own is left, the outputs are the same, and weights are found."""
    path, output = small.save(case.model(), tmp_path), tmp_path / "out.onnx"
    before = run_onnx(path, case.feeds())
    assert not compress("inspect", path, "--json").json()["opaque"]
    compress(path, "-o", output, "--quiet")
    assert len(compress("inspect", output, "--json").json()["layers"]) == case.layers
    made = onnx.load(output)
    onnx.checker.check_model(made)
    assert {n.domain for n in made.graph.node} == {""}
    assert_close(run_onnx(output, case.feeds()), before, tolerance=1e-4)


def lone(op, names, inputs, weights=(), outputs="y", **attributes):
    fused = helper.make_node(op, names.split(" "), outputs.split(" "), "the_node", domain="com.microsoft", **attributes)
    return small.model(
        [fused, node("Relu", "y", "out")], inputs, [("out", None)], weights, opset=13, domains=[("com.microsoft", 1)]
    )


ROW, TEXT = ["batch", HIDDEN], ["batch", "length", HIDDEN]
INT32, ONE = TensorProto.INT32, np.float32(1)
PROJECTION = {"w": floats(1, HIDDEN, 3 * HIDDEN), "b": floats(2, 3 * HIDDEN)}
OPAQUE = {
    "activation": lone("FusedConv", "x w", [("x", [1, 3, 8, 8])], {"w": floats(1, 4, 3, 3, 3)}, activation="Elu"),
    "parameters": lone("FusedConv", "x w", [("x", [1, 3, 8, 8])], {"w": floats(1, 4, 3, 3, 3)}, activation="LeakyRelu"),
    "attribute": lone("Gelu", "x", [("x", ROW)], odd=1),
    "attribute type": lone("QuickGelu", "x", [("x", ROW)], alpha="one"),
    "too many inputs": lone("Gelu", "x x", [("x", ROW)]),
    "missing input": lone("SkipLayerNormalization", "x x", [("x", TEXT)]),
    "unknown rank": lone("FusedMatMul", "x w", [("x", None), ("w", None)], transA=1),
    "statistics": lone("SkipLayerNormalization", "x x g", [("x", TEXT)], {"g": floats(1, HIDDEN)}, "y mean"),
    "no heads": lone("Attention", "x w b", [("x", TEXT)], PROJECTION, num_heads=0),
    "heads that don't divide": lone("Attention", "x w b", [("x", TEXT)], PROJECTION, num_heads=5),
    "heads left out": lone("Attention", "x w b", [("x", TEXT)], PROJECTION),
    "sizes": lone("Attention", "x w b", [("x", TEXT)], PROJECTION, num_heads=3, qkv_hidden_sizes=[2**62] * 3),
    "rotary": lone("Attention", "x w b", [("x", TEXT)], PROJECTION, num_heads=3, do_rotary=1),
    "mask": lone("Attention", "x w b m", [("x", TEXT), ("m", ["any"], INT32)], PROJECTION, num_heads=3),
    "one for all": lone("Attention", "x w b m", [("x", TEXT), ("m", ["batch", 1], INT32)], PROJECTION, num_heads=3),
    "packed": lone("MultiHeadAttention", "x", [("x", ["batch", "length", 3, 3, 4])], num_heads=3),
    "causal crosswise": lone(
        "MultiHeadAttention", "x k k", [("x", TEXT), ("k", ["batch", "keys", HIDDEN])], num_heads=3, unidirectional=1
    ),
    "codes of one row": lone("DynamicQuantizeMatMul", "x w s", [("x", ROW)], {"w": np.ones(12, np.uint8), "s": ONE}),
    "unknown operator": lone("FusedSomething", "x", [("x", ROW)]),
}


@pytest.mark.parametrize("name", OPAQUE)
def test_what_has_no_such_meaning_stays(compress, tmp_path, name):
    """A form that is not understood is left as it came."""
    path, output = small.save(OPAQUE[name], tmp_path), tmp_path / "out.onnx"
    compress(path, "-o", output, "--quiet")
    (kept, came) = (onnx.load(output).graph.node[0], OPAQUE[name].graph.node[0])
    assert (kept.domain, kept.op_type, kept.input, kept.output) == (came.domain, came.op_type, came.input, came.output)
    attributes = [{a.name: helper.get_attribute_value(a) for a in n.attribute} for n in (kept, came)]
    assert attributes[0] == attributes[1]


def test_a_layout_of_a_machine_stays_and_the_reason_says_so(compress, tmp_path):
    """What level `all` writes runs on machines of one kind only."""
    fused = helper.make_node("ReorderOutput", ["x"], ["y"], "the_node", domain="com.microsoft.nchwc", channels=3)
    made = small.model(
        [fused, node("Relu", "y", "out")], [("x", [1, 16, 4, 4])], [("out", None)], domains=[("com.microsoft.nchwc", 1)]
    )
    path, output = small.save(made, tmp_path), tmp_path / "out.onnx"
    compress(path, "-o", output, "--quiet")
    assert small.ops(output) == ["ReorderOutput", "Relu"]
    assert "optimise at level extended, not all" in compress("inspect", path, "--json").out


def test_names_and_words_survive(compress, tmp_path):
    """The layer keeps the name and the documentation of what it was fused into, results keep theirs."""
    made = dict(CASES)["conv-sum-Relu"].model()
    made.graph.node[0].doc_string = "mind the gap"
    path, output = small.save(made, tmp_path), tmp_path / "out.onnx"
    compress(path, "-o", output, "--quiet")
    nodes = {n.op_type: n for n in onnx.load(output).graph.node}
    assert (nodes["Conv"].name, nodes["Conv"].doc_string) == ("the_node", "mind the gap")
    assert list(nodes["Relu"].output) == ["y"] and list(nodes["Neg"].output) == ["y_out"]


def test_values_may_have_the_names_that_would_be_given(compress, tmp_path):
    """Others' names are theirs, whether they come before or after."""
    taken = ["y/Conv", "y/Add.1", "y/Conv.1", "y/Add", "y/constant"]
    made = dict(CASES)["conv-sum-Relu"].model()
    made.graph.node.insert(0, node("Neg", "x", taken[0]))
    made.graph.node.insert(1, node("Neg", taken[0], taken[1]))
    made.graph.node.append(node("Neg", "y", taken[2]))
    made.graph.node.append(node("Neg", taken[2], taken[3]))
    made.graph.output.extend(helper.make_tensor_value_info(t, TensorProto.FLOAT, None) for t in taken[:4])
    path, output = small.save(made, tmp_path), tmp_path / "out.onnx"
    compress(path, "-o", output, "--quiet")
    feeds = dict(CASES)["conv-sum-Relu"].feeds()
    assert_close(run_onnx(output, feeds), run_onnx(path, feeds), tolerance=1e-4)


def test_branches_have_them_too(compress, tmp_path):
    """In the graph of an If, with a weight from around it."""

    def branch(op, y):
        fused = helper.make_node(op, ["x", "b"], [y], domain="com.microsoft")
        return helper.make_graph([fused], op, [], [helper.make_tensor_value_info(y, TensorProto.FLOAT, None)])

    made = small.model(
        [
            helper.make_node(
                "If", ["c"], ["y"], then_branch=branch("BiasGelu", "t"), else_branch=branch("FastGelu", "e")
            )
        ],
        [("c", [], TensorProto.BOOL), ("x", ["n", 4])],
        [("y", ["n", 4])],
        {"b": floats(1, 4)},
        domains=[("com.microsoft", 1)],
    )
    path, output = small.save(made, tmp_path), tmp_path / "out.onnx"
    compress(path, "-o", output, "--quiet")
    assert b"com.microsoft" not in b"".join(n.SerializeToString() for n in onnx.load(output).graph.node)
    for c in (True, False):
        feeds = {"c": np.array(c), "x": floats(2, 3, 4)}
        assert_close(run_onnx(output, feeds), run_onnx(path, feeds), tolerance=1e-4)


def test_old_forms_beside_them_are_no_obstacle(compress, tmp_path):
    """A softmax over several axes ends with opset 12, and Gelu is of opset 20: one of them stays as it came."""
    made = small.model(
        [
            helper.make_node("Gelu", ["x"], ["g"], domain="com.microsoft"),
            node("Softmax", "g", "y", axis=1),
        ],
        [("x", [2, 3, 4])],
        [("y", [2, 3, 4])],
        opset=11,
        domains=[("com.microsoft", 1)],
    )
    path, output = small.save(made, tmp_path), tmp_path / "out.onnx"
    compress(path, "-o", output, "--quiet")
    feeds = {"x": floats(1, 2, 3, 4)}
    assert_close(run_onnx(output, feeds), run_onnx(path, feeds), tolerance=1e-4)


class Writer:
    """A model being written: every call adds a node and says how its result is called."""

    def __init__(self):
        self.nodes, self.weights = [], {}

    def __call__(self, op, *inputs, **attributes):
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(node(op, " ".join(inputs), name, **attributes))
        return name

    def constant(self, value, dtype=np.float32):
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(value, dtype)
        return name

    def weight(self, *shape):
        return self.constant(floats(len(self.weights), *shape, scale=0.3))

    def linear(self, x, inputs, outputs):
        return self("Add", self("MatMul", x, self.weight(inputs, outputs)), self.weight(outputs))

    def norm(self, x):
        return self("LayerNormalization", x, self.weight(HIDDEN), self.weight(HIDDEN), axis=-1)

    def heads(self, x, perm):
        shape = self.constant([0, 0, HEADS, HIDDEN // HEADS], np.int64)
        return self("Transpose", self("Reshape", x, shape), perm=perm)


def transformer():
    """Two layers of BERT as exporters write them."""
    w = Writer()
    words = w("Gather", w.weight(20, HIDDEN), "ids")
    kinds = w("Gather", w.weight(2, HIDDEN), "segments")
    places = w("Gather", w.weight(9, HIDDEN), w.constant(np.arange(5)[None], np.int64))
    x = w.norm(w("Add", w("Add", words, places), kinds))
    seen = w("Unsqueeze", w("Unsqueeze", "mask", w.constant([1], np.int64)), w.constant([2], np.int64))
    hidden = w("Sub", w.constant(1), w("Cast", seen, to=TensorProto.FLOAT))
    added = w("Mul", hidden, w.constant(-10000))
    for _ in range(2):
        q, k, v = (w.linear(x, HIDDEN, HIDDEN) for _ in range(3))
        scores = w("MatMul", w.heads(q, (0, 2, 1, 3)), w.heads(k, (0, 2, 3, 1)))
        scores = w("Add", w("Div", scores, w.constant((HIDDEN // HEADS) ** 0.5)), added)
        context = w("MatMul", w("Softmax", scores, axis=-1), w.heads(v, (0, 2, 1, 3)))
        joined = w("Reshape", w("Transpose", context, perm=(0, 2, 1, 3)), w.constant([0, 0, HIDDEN], np.int64))
        x = w.norm(w("Add", x, w.linear(joined, HIDDEN, HIDDEN)))
        h = w.linear(x, HIDDEN, 4 * HIDDEN)
        half = w("Mul", h, w("Add", w("Erf", w("Div", h, w.constant(2**0.5))), w.constant(1)))
        x = w.norm(w("Add", x, w.linear(w("Mul", half, w.constant(0.5)), 4 * HIDDEN, HIDDEN)))
    w.nodes.append(node("Relu", x, "y"))
    inputs = [(name, ["batch", 5], TensorProto.INT64) for name in ("ids", "segments", "mask")]
    return small.model(w.nodes, inputs, [("y", ["batch", 5, HIDDEN])], w.weights)


def optimised(made, folder):
    """What ONNX Runtime makes of a model, as a file."""
    path = folder / "optimised.onnx"
    session(made, save=path)
    return path


def test_a_transformer_that_onnx_runtime_optimised(compress, tmp_path):
    """All of it is understood, its layers are found, and it runs here."""
    made = transformer()
    path, output = optimised(made, tmp_path), tmp_path / "out.onnx"
    written = Counter(n.op_type for n in onnx.load(path).graph.node if n.domain == "com.microsoft")
    assert {"SkipLayerNormalization", "BiasGelu"} <= set(written), written
    assert not compress("inspect", path, "--json").json()["opaque"]
    rng = np.random.default_rng(0)
    feeds = {name: rng.integers(0, n, (2, 5)) for name, n in (("ids", 20), ("segments", 2), ("mask", 2))}
    np.savez(tmp_path / "data.npz", **feeds)
    report = compress(path, "-o", output, "--eval", tmp_path / "data.npz", "--json").json()
    assert report["accuracy"]["sqnr_db"] is None or report["accuracy"]["sqnr_db"] > 80
    assert {n.domain for n in onnx.load(output).graph.node} == {""}
    assert_close(run_onnx(output, feeds), run_onnx(made, feeds), tolerance=1e-4)
    kinds = Counter(layer["op"] for layer in compress("inspect", output, "--json").json()["layers"])
    assert sum(kinds[op] for op in ("MatMul", "Gemm")) >= 8


def test_a_conv_net_that_onnx_runtime_optimised(compress, tmp_path):
    """Convolutions and their activations are layers again, which INT8 finds."""
    made = small.cnn(batch=2)
    path, output = optimised(made, tmp_path), tmp_path / "out.onnx"
    assert any(n.op_type == "FusedConv" for n in onnx.load(path).graph.node)
    compress(path, "-o", output, "--quiet")
    assert {n.domain for n in onnx.load(output).graph.node} == {""}
    feeds = {"input": floats(1, 2, 3, 12, 12)}
    assert_close(run_onnx(output, feeds), run_onnx(made, feeds), tolerance=1e-4)
    data = tmp_path / "data.npz"
    np.savez(data, input=floats(2, 16, 3, 12, 12))
    codes = tmp_path / "int8.onnx"
    compress(path, "-o", codes, "--int8", "--data", data, "--quiet")
    assert small.ops(codes).count("QuantizeLinear") > 2


def test_an_activation_behind_a_gemm_that_onnx_runtime_optimised(compress, tmp_path):
    """FusedGemm is a layer again."""
    made = small.mlp()
    path, output = optimised(made, tmp_path), tmp_path / "out.onnx"
    assert "FusedGemm" in small.ops(path)
    compress(path, "-o", output, "--quiet")
    assert small.ops(output) == ["Gemm", "Relu", "Gemm"]
    feeds = {"input": floats(1, 3, 8)}
    assert_close(run_onnx(output, feeds), run_onnx(made, feeds), tolerance=1e-4)
