"""A small decoder with a cache, sequences that it can learn, and what it makes of them on ONNX Runtime."""

import numpy as np
import onnx
from onnx import TensorProto
from small import floats, model, node
from support import session

WORDS, WIDTH, HEADS, LENGTH = 48, 32, 2, 24
SIZE = WIDTH // HEADS
INT64 = TensorProto.INT64


def layer(number, name, x):
    """The nodes of a layer; `name` tells the values of the layer from those of others. Its output is `sum` by that name."""
    nodes = [node("LayerNormalization", f"{x} scale bias", name("normed"), axis=-1)]
    for part in "qkv":
        nodes += [
            node("MatMul", f"{name('normed')} {name(f'w{part}')}", name(f"{part}m")),
            node("Reshape", f"{name(f'{part}m')} heads", name(f"{part}r")),
            node("Transpose", name(f"{part}r"), name(f"{part}t"), perm=[0, 2, 1, 3]),
        ]
    key, value = f"present.{number}.key", f"present.{number}.value"
    return nodes + [
        node("Concat", f"past_key_values.{number}.key {name('kt')}", key, axis=2),
        node("Concat", f"past_key_values.{number}.value {name('vt')}", value, axis=2),
        node("Transpose", key, name("turned"), perm=[0, 1, 3, 2]),
        node("MatMul", f"{name('qt')} {name('turned')}", name("products")),
        node("Div", f"{name('products')} root", name("scores")),
        node("Where", f"kept {name('scores')} lowest", name("masked")),
        node("Softmax", name("masked"), name("weights"), axis=-1),
        node("MatMul", f"{name('weights')} {value}", name("context")),
        node("Transpose", name("context"), name("side"), perm=[0, 2, 1, 3]),
        node("Reshape", f"{name('side')} joined", name("together")),
        node("MatMul", f"{name('together')} {name('wo')}", name("out")),
        node("Add", f"{name('out')} {x}", name("sum")),
    ]


def decoder(path, words=WORDS, layers=(0,)):
    """Layers as Hugging Face's exporters write them: a cache, a mask by places, and words that are the head too. A layer has the
    same weights wherever it stands."""
    nodes = [
        node("Gather", "words input_ids", "word"),
        node("Gather", "places position_ids", "place"),
        node("Add", "word place", "x"),
        # A key is seen from its own place on, and where the mask has a one.
        node("Shape", "attention_mask", "total", start=1),
        node("Squeeze", "total", "count"),
        node("Range", "zero count one", "keys"),
        node("Unsqueeze", "position_ids axes", "queries"),
        node("LessOrEqual", "keys queries", "before"),
        node("Cast", "attention_mask", "counts", to=TensorProto.BOOL),
        node("Unsqueeze", "counts two", "given"),
        node("Unsqueeze", "before second", "seen"),
        node("And", "seen given", "kept"),
    ]
    cache = ["batch", HEADS, "past", SIZE]
    inputs = [
        ("input_ids", ["batch", "sequence"], INT64),
        ("attention_mask", ["batch", "total"], INT64),
        ("position_ids", ["batch", "sequence"], INT64),
    ]
    outputs = [("logits", ["batch", "sequence", words])]
    weights = {
        "words": floats(1, words, WIDTH, scale=0.2),
        "places": floats(2, 64, WIDTH, scale=0.3),
        "scale": np.ones(WIDTH, np.float32),
        "bias": np.zeros(WIDTH, np.float32),
        "heads": np.array([0, 0, HEADS, SIZE], np.int64),
        "joined": np.array([0, 0, WIDTH], np.int64),
        "root": np.float32(SIZE**0.5),
        "zero": np.int64(0),
        "one": np.int64(1),
        "axes": np.array([2], np.int64),
        "two": np.array([1, 2], np.int64),
        "second": np.array([1], np.int64),
        "lowest": np.float32(np.finfo(np.float32).min),
    }
    x = "x"
    for number, of in enumerate(layers):
        prefix = f"layer{of}." if of else ""
        nodes += layer(number, lambda name, prefix=prefix: prefix + name, x)
        x = f"{prefix}sum"
        inputs += [(f"past_key_values.{number}.{part}", cache) for part in ("key", "value")]
        outputs += [(f"present.{number}.{part}", ["batch", HEADS, "total", SIZE]) for part in ("key", "value")]
        seeds = enumerate("qkvo", start=3 + 4 * of)
        weights |= {f"{prefix}w{part}": floats(seed, WIDTH, WIDTH, scale=0.3) for seed, part in seeds}
    nodes += [
        node("Transpose", "words", "head", perm=[1, 0]),
        node("MatMul", f"{x} head", "logits"),
    ]
    onnx.save(model(nodes, inputs, outputs, weights), path)
    return path


def scores(path, ids, optimise=False):
    """All tokens at once, on ONNX Runtime; optimised, it multiplies codes of 8 bits where weights are in blocks."""
    n, length = ids.shape
    model = session(path, optimise)
    feed = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": np.arange(length)[None].repeat(n, 0),
    }
    caches = [i.name for i in model.get_inputs() if i.name not in feed]
    feed |= {name: np.zeros((n, HEADS, 0, SIZE), np.float32) for name in caches}
    return model.run(["logits"], feed)[0].astype(np.float64)


def likely(scores):
    return scores - np.log(np.exp(scores).sum(-1, keepdims=True))


def perplexity(scores, ids):
    return np.exp(-np.take_along_axis(likely(scores)[:, :-1], ids[:, 1:, None], 2).mean())


def sequences(path, count=40):
    """Sequences in which a token leaves three for the next: a perplexity of 3 is the best. They are saved there too."""
    rng = np.random.default_rng(6)
    ids = (np.cumsum(rng.integers(0, 3, (count, LENGTH)), axis=1) % WORDS).astype(np.int64)
    np.savez(path, input_ids=ids)
    return ids
