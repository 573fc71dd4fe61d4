"""Transformers in the words of several exporters: what is left of them, for any runtime and for ONNX Runtime."""

from collections import Counter

import numpy as np
import onnx
import pytest
import small
from small import node
from support import assert_close, run_onnx

HIDDEN, HEADS, LAYERS = 8, 2, 2
SIZE = HIDDEN // HEADS
SCALE = SIZE**-0.5


class Writer:
    """A model being written: every method adds nodes and says how their result is called."""

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

    def ints(self, *values):
        return self.constant(values, np.int64)

    def weight(self, *shape):
        return self.constant(small.floats(len(self.weights), *shape, scale=0.5))

    def linear(self, x, outputs=HIDDEN):
        return self("Add", self("MatMul", x, self.weight(HIDDEN, outputs)), self.weight(outputs))

    def heads(self, x, perm=(0, 2, 1, 3)):
        return self("Transpose", self("Reshape", x, self.ints(0, -1, HEADS, SIZE)), perm=perm)

    def joined(self, x):
        return self("Reshape", self("Transpose", x, perm=(0, 2, 1, 3)), self.ints(0, -1, HIDDEN))


def plain(w, x, mask):
    q, k, v = (w.linear(x) for _ in range(3))
    scores = w("Mul", w("MatMul", w.heads(q), w.heads(k, (0, 2, 3, 1))), w.constant(SCALE))
    if mask:
        scores = w("Add", scores, mask)
    return w.joined(w("MatMul", w("Softmax", scores, axis=-1), w.heads(v)))


def divided(w, x, mask):
    """BERT: keys are transposed in two steps, products divided, the mask comes first."""
    q, k, v = (w.linear(x) for _ in range(3))
    k = w("Transpose", w.heads(k), perm=(0, 1, 3, 2))
    scores = w("Div", w("MatMul", w.heads(q), k), w.constant(1 / SCALE))
    if mask:
        scores = w("Add", mask, scores)
    return w.joined(w("MatMul", w("Softmax", scores, axis=3), w.heads(v)))


def rooted(w, x, mask):
    """scaled_dot_product_attention: queries and keys are each multiplied by the root of the scale."""
    q, k, v = (w.linear(x) for _ in range(3))
    root = w.constant(SCALE**0.5)
    q, k = w("Mul", w.heads(q), root), w("Mul", w.heads(k, (0, 2, 3, 1)), root)
    scores = w("MatMul", q, k)
    if mask:
        scores = w("Add", scores, mask)
    return w.joined(w("MatMul", w("Softmax", scores), w.heads(v)))


def computed(w, x, mask):
    """Shapes are computed from those of the input; queries are scaled before they are split."""
    q, k, v = (w.linear(x) for _ in range(3))
    shape = w("Shape", x)
    size = [w("Gather", shape, w.ints(i), axis=0) for i in range(2)]

    def heads(x, perm):
        target = w("Concat", *size, w.ints(HEADS), w.ints(SIZE), axis=0)
        return w("Transpose", w("Reshape", x, target), perm=perm)

    q = w("Mul", w.constant(SCALE), q)
    scores = w("MatMul", heads(q, (0, 2, 1, 3)), heads(k, (0, 2, 3, 1)))
    if mask:
        scores = w("Add", scores, mask)
    context = w("MatMul", w("Softmax", scores, axis=-1), heads(v, (0, 2, 1, 3)))
    target = w("Concat", *size, w.ints(HIDDEN), axis=0)
    return w("Reshape", w("Transpose", context, perm=(0, 2, 1, 3)), target)


def replaced(w, x, mask):
    """GPT-2: what is not to be seen is replaced."""
    q, k, v = (w.linear(x) for _ in range(3))
    scores = w("Div", w("MatMul", w.heads(q), w.heads(k, (0, 2, 3, 1))), w.constant(1 / SCALE))
    seen = w.constant(np.tril(np.ones((1, 1, 5, 5))), bool)
    return w.joined(w("MatMul", w("Softmax", w("Where", seen, scores, w.constant(-1e4))), w.heads(v)))


def packed(w, x, mask):
    """timm: queries, keys and values are one product, and taken apart by Gather."""
    all_three = w("Reshape", w.linear(x, 3 * HIDDEN), w.ints(0, -1, 3, HEADS, SIZE))
    all_three = w("Transpose", all_three, perm=(2, 0, 3, 1, 4))
    q, k, v = (w("Gather", all_three, w.constant(i, np.int64), axis=0) for i in range(3))
    scores = w("MatMul", w("Mul", q, w.constant(SCALE)), w("Transpose", k, perm=(0, 1, 3, 2)))
    if mask:
        scores = w("Add", scores, mask)
    return w.joined(w("MatMul", w("Softmax", scores, axis=-1), v))


def norm(w, x):
    return w("LayerNormalization", x, w.weight(HIDDEN), w.weight(HIDDEN), axis=-1)


def old_norm(w, x):
    """LayerNormalization for opsets that have none."""
    centred = w("Sub", x, w("ReduceMean", x, axes=[-1]))
    variance = w("ReduceMean", w("Pow", centred, w.constant(2)), axes=[-1])
    root = w("Sqrt", w("Add", variance, w.constant(1e-5)))
    return w("Add", w("Mul", w("Div", centred, root), w.weight(HIDDEN)), w.weight(HIDDEN))


def rms_norm(w, x):
    square = w("ReduceMean", w("Pow", x, w.constant(2)), axes=[-1])
    root = w("Sqrt", w("Add", square, w.constant(1e-5)))
    return w("Mul", w.weight(HIDDEN), w("Mul", x, w("Reciprocal", root)))


def transformer(attention, normalise=norm, length="length", mask=None, opset=17):
    """A model with inputs `x` and, if `mask` has a shape, `mask`."""
    w, x = Writer(), "x"
    for _ in range(LAYERS):
        context = attention(w, normalise(w, x), "mask" if mask else None)
        x = w("Add", x, w.linear(context))
        x = w("Add", x, w.linear(w("Relu", w.linear(normalise(w, x)))))
    inputs = [("x", ["batch", length, HIDDEN])] + ([("mask", mask)] if mask else [])
    return small.model(w.nodes, inputs, [(x, ["batch", length, HIDDEN])], w.weights, opset=opset)


def compressed(compress, model, tmp_path, target, batch=3, length=5):
    """The operators of what `target` makes of a model, once their outputs were compared."""
    path, output = small.save(model, tmp_path), tmp_path / f"{target}.onnx"
    report = compress(path, "--target", target, "-o", output, "--json").json()
    made = onnx.load(output)
    onnx.checker.check_model(made)
    sizes = {"batch": batch, "length": length}
    feeds = {}
    for seed, i in enumerate(model.graph.input):
        shape = [d.dim_value or sizes[d.dim_param] for d in i.type.tensor_type.shape.dim]
        feeds[i.name] = small.floats(seed, *shape)
    if "mask" in feeds:
        feeds["mask"] = np.where(feeds["mask"] > 0.5, np.float32(-1e4), np.float32(0))
    expected = run_onnx(model, feeds)
    assert_close(run_onnx(made, feeds), expected)
    assert_close(run_onnx(made, feeds, optimise=True), expected)
    return Counter(n.op_type for n in made.graph.node), made.opset_import[0].version, report


BERT_MASK = ["batch", 1, 1, "length"]
FULL_MASK = ["batch", 1, "length", "length"]
SPELLINGS = {"plain": plain, "divided": divided, "rooted": rooted, "computed": computed}


@pytest.mark.parametrize("mask", [None, BERT_MASK, FULL_MASK], ids=["no mask", "mask of keys", "whole mask"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_scales_and_biases_of_attention_cost_nothing(compress, tmp_path, spelling, mask):
    operators, opset, _ = compressed(compress, transformer(SPELLINGS[spelling], mask=mask), tmp_path, "portable")
    assert opset <= 20
    # A bias each of queries, the output and two layers behind, two sums with what was before, the mask.
    adds = 4 + 2 + bool(mask)
    expected = {
        "Add": adds,
        "MatMul": 8,
        "Softmax": 1,
        "Reshape": 4,
        "Transpose": 4,
        "LayerNormalization": 2,
        "Relu": 1,
    }
    extra = operators - Counter({op: n * LAYERS for op, n in expected.items()})
    assert set(extra) <= ({"Shape", "Concat", "Gather"} if spelling == "computed" else set()), extra
    assert all(operators[op] == n * LAYERS for op, n in expected.items()), operators


@pytest.mark.parametrize("length", ["length", 5])
@pytest.mark.parametrize("mask", [None, BERT_MASK, FULL_MASK], ids=["no mask", "mask of keys", "whole mask"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_onnx_runtime_gets_attention(compress, tmp_path, spelling, mask, length):
    mask = mask and [length if d == "length" else d for d in mask]
    model = transformer(SPELLINGS[spelling], mask=mask, length=length)
    operators, opset, report = compressed(compress, model, tmp_path, "onnxruntime")
    assert opset == 23 and report["recipe"]["flags"] == ["--target onnxruntime"]
    expected = {"Attention": 1, "Add": 6, "MatMul": 6, "LayerNormalization": 2, "Relu": 1}
    expected = Counter({op: n * LAYERS for op, n in expected.items()})
    if mask and mask[2] == 1:
        # Rows for the mask are made once for all layers.
        expected += Counter(["Expand"] if length == 5 else ["Expand", "Shape", "Concat"])
    assert operators == expected


def test_packed_projections_keep_their_heads_apart(compress, tmp_path):
    model = transformer(packed, mask=FULL_MASK)
    assert compressed(compress, model, tmp_path, "portable")[0]["Softmax"] == LAYERS
    operators = compressed(compress, model, tmp_path, "onnxruntime")[0]
    assert operators["Attention"] == LAYERS and operators["Softmax"] == 0


def test_replaced_scores_leave_the_biases_of_keys(compress, tmp_path):
    """-1e4 is less far from scores with a bias than from those without."""
    operators = compressed(compress, transformer(replaced, length=5), tmp_path, "portable")[0]
    assert operators["Div"] == 0 and operators["Add"] == 7 * LAYERS
    operators = compressed(compress, transformer(replaced, length=5), tmp_path, "onnxruntime")[0]
    assert operators["Softmax"] == LAYERS and operators["Attention"] == 0


@pytest.mark.parametrize("opset", [11, 13])
def test_old_norms_are_one_operator(compress, tmp_path, opset):
    # Softmax of opset 11 is along the last axis only if it says so.
    model = transformer(divided, old_norm, opset=opset)
    operators, opset, _ = compressed(compress, model, tmp_path, "portable")
    assert operators["LayerNormalization"] == 2 * LAYERS and operators["ReduceMean"] == 0
    assert opset == 17


def test_a_model_that_must_stay_at_its_opset_stays(compress, tmp_path):
    """Softmax over several axes ended with opset 12."""
    w = Writer()
    w("Softmax", old_norm(w, "x"), axis=1)
    shape = ["batch", "length", HIDDEN]
    model = small.model(w.nodes, [("x", shape)], [(w.nodes[-1].output[0], shape)], w.weights, opset=12)
    for target in ("portable", "onnxruntime"):
        operators, opset, report = compressed(compress, model, tmp_path, target)
        assert opset == 12 and operators["LayerNormalization"] == 0
        assert any("opset 17" in s["reason"] for p in report["passes"] for s in p["skipped"])


def test_rms_norms_are_one_operator_for_onnx_runtime(compress, tmp_path):
    model = transformer(plain, rms_norm)
    assert compressed(compress, model, tmp_path, "portable")[0]["RMSNormalization"] == 0
    assert compressed(compress, model, tmp_path, "onnxruntime")[0]["RMSNormalization"] == 2 * LAYERS


def test_an_unknown_target_is_2(compress, tmp_path):
    path = small.save(small.mlp(), tmp_path)
    assert "portable" in compress(path, "--target", "toaster", code=2).err


@pytest.mark.parametrize("keys, biases", [("length", 2), ("keys", 3), (5, 2)])
def test_no_key_is_no_weight(compress, tmp_path, keys, biases):
    """The bias of the values moves behind the weights only where these have a sum of 1, or make nothing."""
    w = Writer()
    memory = "x" if keys == "length" else "memory"
    q, k, v = w.linear("x"), w.linear(memory), w.linear(memory)
    scores = w("MatMul", w.heads(q), w.heads(k, (0, 2, 3, 1)))
    w.linear(w.joined(w("MatMul", w("Softmax", scores), w.heads(v))))
    w.nodes[-1].output[0] = "y"
    inputs = [("x", ["batch", "length", HIDDEN])] + [("memory", ["batch", keys, HIDDEN])] * (memory == "memory")
    path = small.save(small.model(w.nodes, inputs, [("y", ["batch", "length", HIDDEN])], w.weights), tmp_path)
    compress(path)
    assert small.ops(tmp_path / "model.compressed.onnx").count("Add") == biases
    for batch, length, n in [(2, 3, 4), (2, 0, 4), (2, 3, 0)]:
        n = keys if isinstance(keys, int) else n
        feeds = {"x": small.floats(1, batch, length, HIDDEN), "memory": small.floats(2, batch, n, HIDDEN)}
        feeds = {name: feeds[name] for name, _ in inputs}
        expected, got = run_onnx(path, feeds)[0], run_onnx(tmp_path / "model.compressed.onnx", feeds)[0]
        assert_close(got, expected)


def test_attention_and_norms_over_nothing_stay_apart(compress, tmp_path):
    """ONNX Runtime's kernels for the whole refuse what those for the parts take."""
    made = small.model(
        [
            node("Transpose", "k", "t", perm=[0, 1, 3, 2]),
            node("MatMul", "q t", "s"),
            node("Softmax", "s", "p"),
            node("MatMul", "p v", "y"),
            node("Pow", "n two", "square"),
            node("ReduceMean", "square", "mean", axes=[-1]),
            node("Add", "mean e", "sum"),
            node("Sqrt", "sum", "root"),
            node("Div", "n root", "d"),
            node("Mul", "d g", "z"),
        ],
        [("q", [1, 2, 3, 4]), ("k", [1, 2, 0, 4]), ("v", [1, 2, 0, 4]), ("n", ["b", 0])],
        [("y", [1, 2, 3, 4]), ("z", ["b", 0])],
        {"two": np.float32(2), "e": np.float32(1e-5), "g": np.zeros(0, np.float32)},
    )
    path = small.save(made, tmp_path)
    compress(path, "--target", "onnxruntime")
    feeds = {n: np.ones(s, np.float32) for n, s in [("q", (1, 2, 3, 4)), ("k", (1, 2, 0, 4)), ("n", (2, 0))]}
    feeds["v"] = feeds["k"]
    for got, expected in zip(run_onnx(tmp_path / "model.compressed.onnx", feeds), run_onnx(path, feeds), strict=True):
        assert_close(got, expected)
