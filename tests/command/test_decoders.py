"""Decoders with a cache: whole sequences of tokens in the data, on our runtime and on ONNX Runtime."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from small import floats, model, node
from support import read_report, session

WORDS, WIDTH, HEADS, LENGTH = 48, 32, 2, 24
SIZE = WIDTH // HEADS
INT64 = TensorProto.INT64
LIBRARY = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*"))


def decoder(path):
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
        ("logits", ["batch", "sequence", WORDS]),
        ("present.0.key", ["batch", HEADS, "total", SIZE]),
        ("present.0.value", ["batch", HEADS, "total", SIZE]),
    ]
    weights = {
        "words": floats(1, WORDS, WIDTH, scale=0.2),
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


@pytest.fixture
def ids(tmp_path):
    """Sequences in which a token says something of the next."""
    rng = np.random.default_rng(6)
    ids = np.cumsum(rng.integers(0, 3, (40, LENGTH)), axis=1) % WORDS
    np.savez(tmp_path / "ids.npz", input_ids=ids.astype(np.int64))
    return ids.astype(np.int64)


ENGINES = {"cpu": [], "burn": ["--engine", "burn"], "onnxruntime": ["--engine", "onnxruntime", "--ort", LIBRARY]}


@pytest.mark.parametrize("engine", ENGINES)
def test_figures_are_those_of_all_tokens_at_once(compress, tmp_path, ids, engine):
    """Most tokens run at once, the last ones with the cache: that changes nothing."""
    before, after, data = decoder(tmp_path / "d.onnx"), tmp_path / "i4.onnx", tmp_path / "ids.npz"
    compress(before, "--weights", "int4", "--block", "16", "-o", after, "--data", data, "--eval", data)
    by = ["--data", data, "--device", "cpu", "--metric", "perplexity", "--json", *ENGINES[engine]]
    found = compress("check", after, "--against", before, *by).json()["accuracy"]
    optimised = engine == "onnxruntime"
    old, new = scores(before, ids, optimised), scores(after, ids, optimised)
    assert found["before"] == pytest.approx(perplexity(old, ids), rel=1e-4)
    assert found["after"] == pytest.approx(perplexity(new, ids), rel=1e-4)
    assert found["drop"] == pytest.approx(found["after"] - found["before"])
    beside = {f["metric"]: f["value"] for f in found["beside"]}
    p, q = likely(old), likely(new)
    assert beside["kl"] == pytest.approx((np.exp(p) * (p - q)).sum(-1).mean(), rel=1e-2)
    assert beside["next-token"] == pytest.approx((p.argmax(-1) == q.argmax(-1)).mean(), abs=2e-3)


def test_a_cache_that_is_wrong_is_seen(compress, tmp_path, ids):
    """Keys that come out of a run changed make a difference only where they go in again."""
    before, after = decoder(tmp_path / "d.onnx"), tmp_path / "wrong.onnx"
    wrong = onnx.load(before)
    turned = next(n for n in wrong.graph.node if "present.0.key" in n.output)
    turned.output[0] = "joined.0.key"
    for reader in wrong.graph.node:
        reader.input[:] = ["joined.0.key" if i == "present.0.key" else i for i in reader.input]
    wrong.graph.node.append(node("Neg", "joined.0.key", "present.0.key"))
    onnx.save(wrong, after)
    by = ["--data", tmp_path / "ids.npz", "--device", "cpu", "--metric", "kl", "--json"]
    found = compress("check", after, "--against", before, *by, code=(0, 5, 9)).json()["accuracy"]
    assert found["after"] > 0.01


@pytest.mark.parametrize("token", [WORDS + 5, -2])
def test_tokens_beyond_the_vocabulary_are_refused(compress, tmp_path, token):
    model = decoder(tmp_path / "d.onnx")
    np.savez(tmp_path / "wrong.npz", input_ids=np.full((8, LENGTH), token))
    done = compress("check", model, "--against", model, "--data", tmp_path / "wrong.npz", "--device", "cpu", code=7)
    assert f"token {token} is outside the model's vocabulary of {WORDS}" in done.err


def test_a_decoder_is_not_trained_and_says_so(compress, tmp_path, ids):
    model, data = decoder(tmp_path / "d.onnx"), tmp_path / "ids.npz"
    out = tmp_path / "o.onnx"
    done = compress(
        "distill", model, "--teacher", model, "--data", data, "--epochs", 1, "-o", out, "--device", "cpu", code=5
    )
    assert "a decoder with a cache is not trained" in done.err and "export it without a cache" in done.err
    assert not out.exists()


def test_made_up_tokens_are_sequences(compress, tmp_path):
    """Without data the cache is tried too."""
    model = decoder(tmp_path / "d.onnx")
    done = compress(model, "--weights", "int8", "-o", tmp_path / "i8.onnx", "--device", "cpu")
    report = read_report(tmp_path / "i8.report.json")
    assert report["accuracy"]["metric"] == "next-token" and report["accuracy"]["output"] == "logits"
    assert "input_ids 1x128" in done.out or "input_ids 1x64" in done.out
