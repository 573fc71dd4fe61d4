"""Training over tokens: the label of each is the next one."""

import json

import numpy as np
import onnx
import pytest
from decoders import WORDS, decoder, likely, perplexity, scores, sequences
from onnx import TensorProto, helper, numpy_helper
from small import floats, model, node
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
        # Real text decides, whatever the caches of a trained model are.
        assert not read_report(out.with_suffix(".report.json")).get("unusable")
        found[epochs] = perplexity(scores(out, ids), ids)
    assert found[8] < 0.9 * found[0]


def test_a_teacher_of_other_words_is_refused(compress, tmp_path, texts):
    data, _ = texts
    model, other = decoder(tmp_path / "d.onnx"), decoder(tmp_path / "o.onnx", words=WORDS + 8)
    args = ("distill", model, "--teacher", other, *data, "-o", tmp_path / "s.onnx", *QUICK)
    assert "do not fit the model's" in compress(*args, code=7).err


def test_lines_of_other_lengths_have_other_answers(compress, tmp_path):
    """Lines are filled up to the longest of a batch, which differs from epoch to epoch: the teacher's answers too."""
    nodes = [node("Gather", "words input_ids", "word"), node("MatMul", "word w", "product")]
    nodes += [node("Cast", "attention_mask", "given", to=TensorProto.FLOAT), node("Unsqueeze", "given axis", "counts")]
    nodes += [node("Mul", "product counts", "hidden")]
    inputs = [(name, ["batch", "tokens"], TensorProto.INT64) for name in ("input_ids", "attention_mask")]
    weights = {"words": floats(1, 256, 8), "w": floats(2, 8, 8), "axis": np.array([2], np.int64)}
    path, text = tmp_path / "m.onnx", tmp_path / "lines.txt"
    onnx.save(model(nodes, inputs, [("hidden", ["batch", "tokens", 8])], weights), path)
    text.write_text("\n".join("ab " * (1 + i % 13) for i in range(60)))
    args = ("distill", path, "--teacher", path, "--from-nothing", "--data", text, "--eval", text, "--epochs", 5)
    compress(*args, "-o", tmp_path / "o.onnx", "--batch", 2, "--lr", 0.03, "--device", "cpu")
    training = read_report(tmp_path / "o.report.json")["training"]
    assert training["after"] > training["before"]


def test_a_table_of_words_is_drawn_behind_a_cast(compress, tmp_path, texts):
    data, _ = texts
    whole, path, out = onnx.load(decoder(tmp_path / "d.onnx")), tmp_path / "cast.onnx", tmp_path / "o.onnx"
    (table,) = (n for n in whole.graph.node if "input_ids" in n.input)
    table.input[1] = "numbers"
    whole.graph.node.insert(0, helper.make_node("Cast", ["input_ids"], ["numbers"], to=TensorProto.INT32))
    onnx.save(whole, path)
    compress("distill", path, "--from-nothing", *data, "-o", out, "--epochs", 1, "--lr", 1e-9, "--device", "cpu")
    words = [next(t for t in onnx.load(p).graph.initializer if t.name == "words") for p in (path, out)]
    assert not np.allclose(*map(numpy_helper.to_array, words))


def test_sequences_of_one_token_teach_nothing(compress, tmp_path):
    np.savez(tmp_path / "one.npz", input_ids=np.ones((40, 1), np.int64))
    path = decoder(tmp_path / "d.onnx")
    said = compress("distill", path, "--data", tmp_path / "one.npz", "-o", tmp_path / "o.onnx", *QUICK, code=7)
    assert "no token has a next one" in said.err
