"""Text in the data: bytes and tokens, pieces and lines."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from small import floats, model, node
from support import ROOT, read_report, session

SCRIBE = ROOT / "models/scribe/scribe.onnx"
TEXT = (ROOT / "models/scribe/test.txt").read_bytes()[:8192]
LENGTH = 256

VOCABULARY = {"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 3, "very": 4, "film": 5, "a": 6, "not": 7}
REVIEWS = [
    ("good film", 1),
    ("a bad film", 0),
    ("very good", 1),
    ("bad", 0),
    ("a very very good film", 1),
    ("very bad film", 0),
]


def pieces():
    """The test text as the command cuts it."""
    text = np.frombuffer(TEXT, np.uint8)
    count = len(text) // LENGTH
    return text[: count * LENGTH].reshape(count, LENGTH).astype(np.int64)


def scores(path, ids):
    """Scores of all tokens at once, on ONNX Runtime."""
    run = session(path)
    n, length = ids.shape
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(length)[None].repeat(n, 0)}
    for i in run.get_inputs()[3:]:
        feed[i.name] = np.zeros((n, i.shape[1], 0, i.shape[3]), np.float32)
    return run.run(["logits"], feed)[0].astype(np.float64)


def perplexity(path, ids):
    loss = []
    for part in np.array_split(ids, -(-len(ids) // 16)):
        logits = scores(path, part)[:, :-1]
        logs = (
            logits
            - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
            - logits.max(-1, keepdims=True)
        )
        loss.append(-np.take_along_axis(logs, part[:, 1:, None], -1).ravel())
    return np.exp(np.concatenate(loss).mean())


def tokenizer(folder, vocabulary=VOCABULARY, **parts):
    """A tokenizer of words."""
    made = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
        **parts,
    }
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(made))
    return path


def judge(folder, extra=None, told_by=("good", "bad")):
    """Judges a review by the mean of its words; what fills it up must not count."""
    nodes = [
        node("Gather", "words input_ids", "word"),
        node("Cast", "attention_mask", "given", to=TensorProto.FLOAT),
        node("Unsqueeze", "given axis2", "counts"),
        node("Mul", "word counts", "kept"),
        node("ReduceSum", "kept axis1", "sum", keepdims=0),
        node("ReduceSum", "given axis1", "count", keepdims=1),
        node("Div", "sum count", "mean"),
        node("Gemm", "mean head", "logits"),
    ]
    inputs = [
        (name, ["batch", "tokens"], TensorProto.INT64)
        for name in ("input_ids", "attention_mask", *([extra] if extra else []))
    ]
    words = floats(3, len(VOCABULARY), 8, scale=0.1)
    for word, value in zip(told_by, (3, -3)):
        words[VOCABULARY[word], 0] = value
    head = floats(4, 8, 2, scale=0.1)
    head[0] = -1, 1
    weights = {"words": words, "head": head, "axis1": np.array([1], np.int64), "axis2": np.array([2], np.int64)}
    path = folder / "judge.onnx"
    onnx.save(model(nodes, inputs, [("logits", ["batch", 2])], weights), path)
    return path


def reviews(folder, lines):
    path = folder / "reviews.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return path


def labelled(times=3):
    return [{"text": text, "label": label} for text, label in REVIEWS] * times


@pytest.fixture
def text(tmp_path):
    """Some of the test text."""
    (tmp_path / "text.txt").write_bytes(TEXT)
    return tmp_path / "text.txt"


def test_bytes_are_the_tokens_of_a_model_of_256_words(compress, tmp_path, text):
    out = tmp_path / "small.onnx"
    said = compress(SCRIBE, "--weights", "int4", "--eval", text, "--tokens", LENGTH, "--check", "full", "-o", out)
    accuracy = read_report(out.with_suffix(".report.json"))["accuracy"]
    assert accuracy["metric"] == "next-token" and accuracy["samples"] == len(pieces())
    (found,) = [f for f in accuracy["beside"] if f["metric"] == "perplexity"]
    for value, path in ((found["before"], SCRIBE), (found["value"], out)):
        assert value == pytest.approx(perplexity(path, pieces()), rel=2e-3)
    assert f"{found['before']:.4f}" in said.out and f"{found['value']:.4f}" in said.out


def test_a_gate_holds_perplexity(compress, tmp_path, text):
    args = (SCRIBE, "--eval", text, "--tokens", LENGTH, "--metric", "perplexity", "-o", tmp_path / "o.onnx", "--force")
    allowed = perplexity(SCRIBE, pieces()[:4]) * 2
    compress(*args, "--max-score", allowed)
    assert "--max-score is 1.01" in compress(*args, "--max-score", 1.01, code=9).err
    assert "--max-score" in compress(*args, "--min-score", 1, code=7).err
    # What is made up follows by chance.
    assert "needs text" in compress(SCRIBE, "--metric", "perplexity", "-o", tmp_path / "o.onnx", "--force", code=7).err


def test_lines_are_samples_where_a_mask_says_what_counts(compress, tmp_path):
    path, data = judge(tmp_path), reviews(tmp_path, labelled())
    tokenizer(tmp_path)
    out = tmp_path / "o.onnx"
    compress(path, "--int8", "--data", data, "--eval", data, "-o", out, "--check", "full")
    accuracy = read_report(out.with_suffix(".report.json"))["accuracy"]
    assert accuracy["metric"] == "top1" and accuracy["before"] == 1.0 and accuracy["samples"] == len(labelled())
    # The tokenizer's own truncation to two tokens would cut `good` off.
    assert accuracy["after"] == 1.0


def test_a_text_without_labels_is_read_line_by_line(compress, tmp_path):
    path = judge(tmp_path)
    named = tokenizer(tmp_path).rename(tmp_path / "words.json")
    text = tmp_path / "text.txt"
    text.write_text("a good film\n\n  \nvery very bad\r\nunheard of\n" * 8)
    out = tmp_path / "o.onnx"
    compress(path, "--eval", text, "--tokenizer", named, "-o", out)
    accuracy = read_report(out.with_suffix(".report.json"))["accuracy"]
    assert accuracy["metric"] == "agreement" and accuracy["samples"] == 24


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"text": "good"}\nnot json\n', "line 2: it is not JSON"),
        ('{"words": "good"}\n', "line 1: it has no `text`"),
        ('{"text": "good", "label": 1}\n{"text": "bad"}\n', "line 2: some lines have a `label`"),
        ('{"text": "good", "label": 7}\n' * 9, "label 7"),
        ('{"text": ""}\n', "line 1: its text is empty"),
        ('{"text": "good", "label": "yes"}\n', 'line 1: its label "yes" is not a whole number'),
        ('{"text": "good", "label": 1.0}\n', "line 1: its label 1.0 is not a whole number"),
        ("\n\n", "no text"),
        ('{"text": "\xff"}'.encode("latin1"), "line 1: it is not UTF-8"),
    ],
)
def test_broken_text_is_refused_with_its_line(compress, tmp_path, content, says):
    path = judge(tmp_path)
    tokenizer(tmp_path)
    data = tmp_path / "reviews.jsonl"
    data.write_bytes(content if isinstance(content, bytes) else content.encode())
    said = compress(path, "--int8", "--data", data, "-o", tmp_path / "o.onnx", code=7)
    assert says in said.err and "reviews.jsonl" in said.err


def test_what_text_needs_is_said(compress, tmp_path):
    path, data = judge(tmp_path), reviews(tmp_path, labelled())
    args = ("--int8", "--data", data, "-o", tmp_path / "o.onnx")
    assert "--tokenizer" in compress(path, *args, code=7).err
    assert "words.json" in compress(path, *args, "--tokenizer", tmp_path / "words.json", code=6).err
    (tmp_path / "words.json").write_text("{}")
    assert "not a sound tokenizer" in compress(path, *args, "--tokenizer", tmp_path / "words.json", code=7).err
    wider = tokenizer(tmp_path, {**VOCABULARY, "good": 99})
    assert "outside the model's vocabulary of 8" in compress(path, *args, code=7).err
    wider.unlink()
    tokenizer(tmp_path)
    assert "extra" in compress(judge(tmp_path, "extra"), *args, code=7).err
    assert "--tokens" in compress(path, "--tokens", 64, "-o", tmp_path / "o.onnx", code=2).err
    short = tmp_path / "short.txt"
    short.write_text("too short")
    assert (
        "fewer than a sample of 256"
        in compress(SCRIBE, "--eval", short, "--tokens", 256, "-o", tmp_path / "o.onnx", code=7).err
    )


COMMANDS = ["compress", "check", "bench", "sensitivity", "explain", "distill"]


def command_line(command, model, out):
    """A command on a model, without its data."""
    return {
        "compress": [model, "--weights", "int8", "-o", out],
        "check": ["check", model, "--against", model],
        "bench": ["bench", model],
        "sensitivity": ["sensitivity", model, "-o", out.with_suffix(".svg")],
        "explain": ["explain", model],
        "distill": ["distill", model, "--teacher", model, "--epochs", 1, "-o", out, "--force"],
    }[command]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_said_of_text_needs_text(compress, tmp_path, command):
    """Arrays hold tokens already: they were read, and the option had no effect."""
    path, ids = judge(tmp_path), np.ones((40, 4), np.int64)
    np.savez(tmp_path / "ids.npz", input_ids=ids, attention_mask=ids)
    args = [*command_line(command, path, tmp_path / "out.onnx"), "--data", tmp_path / "ids.npz"]
    for option in (("--tokens", "64"), ("--tokenizer", tokenizer(tmp_path))):
        said = compress(*args, *option, code=2).err
        assert f"{option[0]} needs data that is a .txt or .jsonl of text" in said and f"leave {option[0]} out" in said
    # The tokenizer that lies beside the model is not asked for.
    compress(*args)


def test_a_line_that_is_cut_off_keeps_its_end(compress, tmp_path):
    """As the tokenizer cuts: the model looks for the token at the end. The file begins with the mark of its encoding."""
    ends = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "a", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"a": {"id": "a", "ids": [VOCABULARY["a"]], "tokens": ["a"]}},
    }
    tokenizer(tmp_path, post_processor=ends)
    path = judge(tmp_path, told_by=["a"])
    data = tmp_path / "long.jsonl"
    lines = [{"text": "film " * count, "label": 1} for count in (2, 7, 9, 30)]
    data.write_text("\ufeff" + "\n".join(map(json.dumps, lines)))
    out = tmp_path / "o.onnx"
    compress(path, "--eval", data, "--tokens", 8, "-o", out)
    accuracy = read_report(out.with_suffix(".report.json"))["accuracy"]
    assert accuracy["before"] == 1.0 and accuracy["samples"] == 4


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
        {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    ],
)
def test_a_tokenizer_that_is_not_sound_is_an_error(compress, tmp_path, parts):
    path, data = judge(tmp_path), reviews(tmp_path, labelled())
    tokenizer(tmp_path, **parts)
    said = compress(path, "--eval", data, "-o", tmp_path / "o.onnx", code=7)
    assert "tokenizer.json" in said.err


def test_labels_stay_with_their_lines(compress, tmp_path):
    """A line without a token would be no sample, and leave its label to the next."""
    tokenizer(tmp_path, normalizer={"type": "Replace", "pattern": {"Regex": "z+"}, "content": ""})
    lines = [{"text": "good", "label": 1}, {"text": "zzz", "label": 0}]
    said = compress(judge(tmp_path), "--eval", reviews(tmp_path, lines), "-o", tmp_path / "o.onnx", code=7)
    assert "line 2: the tokenizer makes no token of its text" in said.err


def test_what_fills_up_is_what_the_tokenizer_says(compress, tmp_path):
    """The mask leaves it out, so its number must only be one that the model has."""
    fills = {"strategy": "BatchLongest", "direction": "Right", "pad_id": 900, "pad_type_id": 0, "pad_token": "[PAD]"}
    tokenizer(tmp_path, padding={**fills, "pad_to_multiple_of": None})
    out = tmp_path / "o.onnx"
    compress(judge(tmp_path), "--eval", reviews(tmp_path, labelled()), "-o", out)
    assert read_report(out.with_suffix(".report.json"))["accuracy"]["before"] == 1.0


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ["sum", "lookup"])
def test_samples_longer_than_the_model_takes_are_told_how_to_be_shorter(compress, tmp_path, command, kind):
    """A table of 8 positions, as encoders have one of 512, cut to the tokens or looked up in by their places."""
    weights = {"words": floats(1, 256, 8), "places": floats(2, 8, 8), "head": floats(3, 8, 4, scale=0.1)}
    weights |= {"zero": np.array([0], np.int64), "one": np.array([1], np.int64)}
    weights |= {"first": np.array(0, np.int64), "step": np.array(1, np.int64)}
    cut = [
        node("Shape", "input_ids", "end", start=1, end=2),
        node("Slice", "places zero end one", "place"),
    ]
    looked_up = [
        node("Shape", "input_ids", "ends", start=1, end=2),
        node("Squeeze", "ends", "end"),
        node("Range", "first end step", "numbers"),
        node("Gather", "places numbers", "place", "places looked up"),
    ]
    nodes = [
        node("Gather", "words input_ids", "word"),
        *(cut if kind == "sum" else looked_up),
        node("Add", "word place", "sum", "places added"),
        node("MatMul", "sum head", "h", "first"),
        node("Relu", "h", "r"),
        node("MatMul", "r tail", "y", "second"),
    ]
    weights |= {"tail": floats(5, 4, 4)}
    inputs = [("input_ids", ["batch", "tokens"], TensorProto.INT64)]
    path, text = tmp_path / "m.onnx", tmp_path / "text.txt"
    onnx.save(model(nodes, inputs, [("y", ["batch", "tokens", 4])], weights), path)
    text.write_text("one two three four five six seven eight\n" * 16)
    args = [*command_line(command, path, tmp_path / "out.onnx"), "--data", text]
    said = compress(*args, "--tokens", 16, code=7).err
    assert "places" in said and "give fewer tokens a sample with --tokens" in said
    compress(*args, "--tokens", 8)
