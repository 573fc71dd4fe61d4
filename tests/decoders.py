"""A small decoder with a cache, sequences that it can learn, and what it makes of them on ONNX Runtime."""

import numpy as np
import onnx
from onnx import TensorProto
from small import floats, model, node
from support import session

WORDS, WIDTH, HEADS, LENGTH = 48, 32, 2, 24
SIZE = WIDTH // HEADS
INT64 = TensorProto.INT64


def decoder(path, words=WORDS):
    """One layer as Hugging Face's exporters write it: a cache, a mask by places, and words that are the head too."""
    heads = [0, 0, HEADS, SIZE]
    nodes = [
        node("Gather", "words input_ids", "word"),
        node("Gather", "places position_ids", "place"),
        node("Add", "word place", "x"),
        node("LayerNormalization", "x scale bias", "normed", axis=-1),
    ]
    for part in "qkv":
        nodes += [
            node("MatMul", f"normed w{part}", f"{part}m"),
            node("Reshape", f"{part}m heads", f"{part}r"),
            node("Transpose", f"{part}r", f"{part}t", perm=[0, 2, 1, 3]),
        ]
    nodes += [
        node("Concat", "past_key_values.0.key kt", "present.0.key", axis=2),
        node("Concat", "past_key_values.0.value vt", "present.0.value", axis=2),
        node("Transpose", "present.0.key", "turned", perm=[0, 1, 3, 2]),
        node("MatMul", "qt turned", "products"),
        node("Div", "products root", "scores"),
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
        node("Where", "kept scores lowest", "masked"),
        node("Softmax", "masked", "weights", axis=-1),
        node("MatMul", "weights present.0.value", "context"),
        node("Transpose", "context", "side", perm=[0, 2, 1, 3]),
        node("Reshape", "side joined", "together"),
        node("MatMul", "together wo", "out"),
        node("Add", "out x", "sum"),
        node("Transpose", "words", "head", perm=[1, 0]),
        node("MatMul", "sum head", "logits"),
    ]
    cache = ["batch", HEADS, "past", SIZE]
    inputs = [
        ("input_ids", ["batch", "sequence"], INT64),
        ("attention_mask", ["batch", "total"], INT64),
        ("position_ids", ["batch", "sequence"], INT64),
        ("past_key_values.0.key", cache),
        ("past_key_values.0.value", cache),
    ]
    outputs = [
        ("logits", ["batch", "sequence", words]),
        ("present.0.key", ["batch", HEADS, "total", SIZE]),
        ("present.0.value", ["batch", HEADS, "total", SIZE]),
    ]
    weights = {
        "words": floats(1, words, WIDTH, scale=0.2),
        "places": floats(2, 64, WIDTH, scale=0.3),
        "scale": np.ones(WIDTH, np.float32),
        "bias": np.zeros(WIDTH, np.float32),
        "heads": np.array(heads, np.int64),
        "joined": np.array([0, 0, WIDTH], np.int64),
        "root": np.float32(SIZE**0.5),
        "zero": np.int64(0),
        "one": np.int64(1),
        "axes": np.array([2], np.int64),
        "two": np.array([1, 2], np.int64),
        "second": np.array([1], np.int64),
        "lowest": np.float32(np.finfo(np.float32).min),
        **{f"w{part}": floats(3 + i, WIDTH, WIDTH, scale=0.3) for i, part in enumerate("qkvo")},
    }
    onnx.save(model(nodes, inputs, outputs, weights), path)
    return path


def scores(path, ids, optimise=False):
    """All tokens at once, on ONNX Runtime; optimised, it multiplies codes of 8 bits where weights are in blocks."""
    n, length = ids.shape
    empty = np.zeros((n, HEADS, 0, SIZE), np.float32)
    feed = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": np.arange(length)[None].repeat(n, 0),
        "past_key_values.0.key": empty,
        "past_key_values.0.value": empty,
    }
    return session(path, optimise).run(["logits"], feed)[0].astype(np.float64)


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
