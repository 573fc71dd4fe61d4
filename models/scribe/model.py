"""Makes the graph of the decoder, with weights that are yet to be trained.

    pip install numpy==2.4.6 onnx==1.23.2
    python models/scribe/model.py untrained.onnx [LAYERS [WIDTH]]

It is laid out as Hugging Face's exporters lay out a decoder: numbers of tokens, a mask and places go in beside the keys and values of
earlier tokens; scores of the next token come out beside the keys and values of all. A token is a byte.
"""

import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OUTPUT, *SIZES = sys.argv[1:]
LAYERS, WIDTH = [*map(int, SIZES), *[4, 160][len(SIZES) :]]
WORDS, PLACES, EACH = 256, 256, 32
HEADS = WIDTH // EACH
OPSET = 17

nodes, weights = [], []


def node(kind, inputs, output, **attributes):
    nodes.append(helper.make_node(kind, inputs, [output], name=f"{output}_{kind}", **attributes))
    return output


def constant(name, value):
    weights.append(numpy_helper.from_array(np.asarray(value), name))
    return name


def weight(name, *shape):
    return constant(name, np.zeros(shape, np.float32))


def ints(name, *values):
    return constant(name, np.array(values, np.int64))


def normalised(x, name):
    scale = constant(f"{name}.weight", np.ones(WIDTH, np.float32))
    return node("LayerNormalization", [x, scale, weight(f"{name}.bias", WIDTH)], name, axis=-1)


def linear(x, name, inputs, outputs):
    product = node("MatMul", [x, weight(f"{name}.weight", inputs, outputs)], f"{name}.product")
    return node("Add", [product, weight(f"{name}.bias", outputs)], name)


def heads(x, name):
    return node("Transpose", [node("Reshape", [x, "each"], f"{name}.split")], f"{name}.heads", perm=[0, 2, 1, 3])


def attention(x, mask, layer):
    name = f"h.{layer}.attn"
    x = normalised(x, f"h.{layer}.ln_1")
    query, key, value = (heads(linear(x, f"{name}.{part}", WIDTH, WIDTH), f"{name}.{part}") for part in "qkv")
    key = node("Concat", [f"past_key_values.{layer}.key", key], f"present.{layer}.key", axis=2)
    value = node("Concat", [f"past_key_values.{layer}.value", value], f"present.{layer}.value", axis=2)
    turned = node("Transpose", [key], f"{name}.keys", perm=[0, 1, 3, 2])
    scores = node("Mul", [node("MatMul", [query, turned], f"{name}.scores"), "scale"], f"{name}.scaled")
    shares = node("Softmax", [node("Add", [scores, mask], f"{name}.masked")], f"{name}.shares", axis=-1)
    seen = node("Transpose", [node("MatMul", [shares, value], f"{name}.seen")], f"{name}.merged", perm=[0, 2, 1, 3])
    return linear(node("Reshape", [seen, "joined"], f"{name}.joined"), f"{name}.out", WIDTH, WIDTH)


def feed_forward(x, layer):
    name = f"h.{layer}.mlp"
    x = linear(normalised(x, f"h.{layer}.ln_2"), f"{name}.up", WIDTH, 4 * WIDTH)
    error = node("Erf", [node("Div", [x, "root2"], f"{name}.erf_in")], f"{name}.erf")
    half = node(
        "Mul", [node("Mul", [x, node("Add", [error, "one"], f"{name}.erf_1")], f"{name}.both"), "half"], f"{name}.gelu"
    )
    return linear(half, f"{name}.down", 4 * WIDTH, WIDTH)


def causal_mask():
    """0 for the tokens that a token sees, very low for later ones and for what the mask leaves out: [batch, 1, tokens, all]."""
    count = node("Gather", [node("Shape", ["attention_mask"], "mask.shape"), "at_1"], "mask.all", axis=0)
    places = node("Unsqueeze", [node("Range", ["zero", count, "step"], "mask.places"), "axes_01"], "mask.keys")
    earlier = node(
        "LessOrEqual", [places, node("Unsqueeze", ["position_ids", "axis_2"], "mask.queries")], "mask.earlier"
    )
    given = node(
        "Cast", [node("Unsqueeze", ["attention_mask", "axis_1"], "mask.given")], "mask.counts", to=TensorProto.BOOL
    )
    seen = node("Unsqueeze", [node("And", [earlier, given], "mask.seen"), "axis_1"], "mask.of_heads")
    return node("Where", [seen, "nothing", "never"], "mask")


def model():
    constant("scale", np.float32(EACH**-0.5))
    constant("root2", np.float32(2**0.5))
    constant("one", np.float32(1))
    constant("half", np.float32(0.5))
    constant("nothing", np.float32(0))
    constant("never", np.float32(-1e9))
    constant("zero", np.int64(0))
    constant("step", np.int64(1))
    constant("at_1", np.int64(1))
    ints("axis_1", 1)
    ints("axis_2", 2)
    ints("axes_01", 0, 1)
    ints("each", 0, 0, HEADS, EACH)
    ints("joined", 0, 0, WIDTH)
    mask = causal_mask()
    words = node("Gather", [weight("wte.weight", WORDS, WIDTH), "input_ids"], "wte", axis=0)
    places = node("Gather", [weight("wpe.weight", PLACES, WIDTH), "position_ids"], "wpe", axis=0)
    x = node("Add", [words, places], "embedded")
    for layer in range(LAYERS):
        x = node("Add", [x, attention(x, mask, layer)], f"h.{layer}.seen")
        x = node("Add", [x, feed_forward(x, layer)], f"h.{layer}")
    node("MatMul", [normalised(x, "ln_f"), weight("head.weight", WIDTH, WORDS)], "logits")

    def value(name, dtype, *shape):
        return helper.make_tensor_value_info(name, dtype, shape)

    caches = [f"{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]
    inputs = [
        value("input_ids", TensorProto.INT64, "batch", "tokens"),
        value("attention_mask", TensorProto.INT64, "batch", "all"),
        value("position_ids", TensorProto.INT64, "batch", "tokens"),
    ] + [value(f"past_key_values.{c}", TensorProto.FLOAT, "batch", HEADS, "past", EACH) for c in caches]
    outputs = [value("logits", TensorProto.FLOAT, "batch", "tokens", WORDS)]
    outputs += [value(f"present.{c}", TensorProto.FLOAT, "batch", HEADS, "all", EACH) for c in caches]
    graph = helper.make_graph(nodes, "scribe", inputs, outputs, weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    onnx.checker.check_model(made, full_check=True)
    return made


if __name__ == "__main__":
    onnx.save(model(), OUTPUT)
