"""Training over tokens: the label of each is the next one."""

import json

import numpy as np
import pytest
from decoders import WORDS, decoder, likely, perplexity, scores, sequences
from support import read_report

pytestmark = pytest.mark.slow

QUICK = ["--batch", 32, "--lr", "0.01", "--device", "cpu"]


@pytest.fixture
def texts(tmp_path):
    """What is trained on, and what is scored on."""
    sequences(tmp_path / "train.npz", 320)
    ids = sequences(tmp_path / "all.npz", 400)[320:]
    np.savez(tmp_path / "test.npz", input_ids=ids)
    return ["--data", tmp_path / "train.npz", "--eval", tmp_path / "test.npz"], ids


def trained(compress, out, texts, *args):
    said = compress("distill", *args, *texts, "-o", out, *QUICK)
    return said, read_report(out.with_suffix(".report.json"))["training"]


def test_next_tokens_are_learnt_from_nothing(compress, tmp_path, texts):
    data, ids = texts
    out = tmp_path / "trained.onnx"
    said, training = trained(compress, out, data, decoder(tmp_path / "d.onnx"), "--from-nothing", "--epochs", 25)
    assert training["metric"] == "perplexity" and training["before"] > WORDS / 2
    # Three tokens may follow each.
    assert 2.9 < training["after"] < 3.6
    assert training["after"] == pytest.approx(perplexity(scores(out, ids), ids), rel=1e-3)
    assert "perplexity" in said.out and "no epoch improved" not in said.err
    logs = [json.loads(line) for line in (tmp_path / "trained.job" / "metrics.jsonl").read_text().splitlines()]
    assert min(r["score"] for r in logs if "score" in r) == pytest.approx(training["after"])


def test_replicas_learn_the_same(compress, tmp_path, texts):
    data, _ = texts
    model = decoder(tmp_path / "d.onnx")
    one, two = (
        trained(compress, tmp_path / f"{n}.onnx", data, model, "--epochs", 2, "--replicas", n, "--threads", 2)[1]
        for n in (1, 2)
    )
    assert one["after"] == pytest.approx(two["after"], rel=1e-3)


def test_a_teacher_teaches_more_than_labels(compress, tmp_path, texts):
    """Of few sequences, each of which shows one of three tokens, a teacher tells all three."""
    data, ids = texts
    model, teacher = decoder(tmp_path / "d.onnx"), tmp_path / "teacher.onnx"
    trained(compress, teacher, data, model, "--from-nothing", "--epochs", 25)
    np.savez(tmp_path / "few.npz", input_ids=np.load(tmp_path / "train.npz")["input_ids"][:48])
    few = ["--data", tmp_path / "few.npz", *data[2:]]
    job = (model, "--from-nothing", "--seed", 5, "--epochs", 60)
    found = {}
    for name, by in (("alone", []), ("taught", ["--teacher", teacher])):
        out = tmp_path / f"{name}.onnx"
        _, training = trained(compress, out, few, *job, *by)
        p, q = (likely(scores(path, ids)) for path in (teacher, out))
        found[name] = training["after"], (np.exp(p) * (p - q)).sum(-1).mean()
    assert found["taught"][0] < found["alone"][0]
    assert found["taught"][1] < 0.9 * found["alone"][1]


def test_a_pruned_decoder_recovers(compress, tmp_path, texts):
    data, ids = texts
    whole = tmp_path / "whole.onnx"
    trained(compress, whole, data, decoder(tmp_path / "d.onnx"), "--from-nothing", "--epochs", 25)
    found = {}
    for epochs in (0, 8):
        out = tmp_path / f"pruned{epochs}.onnx"
        compress(whole, "--prune", 0.95, "--epochs", epochs, *data, "-o", out, "--device", "cpu")
        found[epochs] = perplexity(scores(out, ids), ids)
    assert found[8] < 0.9 * found[0]


def test_a_teacher_of_other_words_is_refused(compress, tmp_path, texts):
    data, _ = texts
    model, other = decoder(tmp_path / "d.onnx"), decoder(tmp_path / "o.onnx", words=WORDS + 8)
    args = ("distill", model, "--teacher", other, *data, "-o", tmp_path / "s.onnx", *QUICK)
    assert "do not fit the model's" in compress(*args, code=7).err
