"""Decoders with a cache: whole sequences of tokens in the data, on our runtime and on ONNX Runtime."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from decoders import LENGTH, WORDS, decoder, likely, perplexity, scores, sequences
from small import node
from support import read_report

LIBRARY = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*"))


@pytest.fixture
def ids(tmp_path):
    return sequences(tmp_path / "ids.npz")


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


def test_made_up_tokens_are_sequences(compress, tmp_path):
    """Without data the cache is tried too."""
    model = decoder(tmp_path / "d.onnx")
    done = compress(model, "--weights", "int8", "-o", tmp_path / "i8.onnx", "--device", "cpu")
    report = read_report(tmp_path / "i8.report.json")
    assert report["accuracy"]["metric"] == "next-token" and report["accuracy"]["output"] == "logits"
    assert "input_ids 1x128" in done.out or "input_ids 1x64" in done.out
