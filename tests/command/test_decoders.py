"""Decoders with a cache: whole sequences of tokens in the data, on our runtime and on ONNX Runtime."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from decoders import LENGTH, WORDS, decoder, likely, perplexity, scores, sequences
from onnx import TensorProto, helper, numpy_helper
from small import floats, model, node
from support import read_report, session

LIBRARY = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*"))


@pytest.fixture
def ids(tmp_path):
    return sequences(tmp_path / "ids.npz")


ENGINES = {"cpu": [], "burn": ["--engine", "burn"], "onnxruntime": ["--engine", "onnxruntime", "--ort", LIBRARY]}


@pytest.mark.parametrize("engine", ENGINES)
def test_figures_are_those_of_all_tokens_at_once(compress, tmp_path, ids, engine):
    """Most tokens run at once, the last ones with the cache: that changes nothing. In front of weights of 4 bits our kernels for the CPU
    make codes of activations, as ONNX Runtime's do by default: what is computed in floats is no farther from ours than from theirs."""
    before, after, data = decoder(tmp_path / "d.onnx"), tmp_path / "i4.onnx", tmp_path / "ids.npz"
    compress(before, "--weights", "int4", "--block", "16", "-o", after, "--data", data, "--eval", data)
    by = ["--data", data, "--device", "cpu", "--metric", "perplexity", "--json", *ENGINES[engine]]
    found = compress("check", after, "--against", before, *by).json()["accuracy"]
    optimised = engine == "onnxruntime"
    old, new = scores(before, ids, optimised), scores(after, ids, optimised)
    assert found["before"] == pytest.approx(perplexity(old, ids), rel=1e-4)
    theirs = scores(after, ids, True)

    def kl(after):
        p, q = likely(old), likely(after)
        return (np.exp(p) * (p - q)).sum(-1).mean()

    def is_near(figure, of, tolerance):
        by_codes = abs(of(theirs) - of(new)) if engine == "cpu" else 0
        return abs(figure - of(new)) < tolerance * of(new) + by_codes

    assert is_near(found["after"], lambda after: perplexity(after, ids), 1e-4)
    assert found["drop"] == pytest.approx(found["after"] - found["before"])
    beside = {f["metric"]: f["value"] for f in found["beside"]}
    assert is_near(beside["kl"], kl, 1e-2)
    agree = (old.argmax(-1) == new.argmax(-1)).mean()
    # Codes may change which of two words that are about as likely comes first: of some tokens in a hundred at most.
    assert beside["next-token"] == pytest.approx(agree, abs=2e-2 if engine == "cpu" else 2e-3)


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


def of_an_encoder(path):
    """A decoder of two branches in one file: in the first run it makes keys of an encoder's outputs, and later returns none."""
    inside = [("keys", [None, None, None, None]), ("made", [None, None, None, None])]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inside]
    first = helper.make_graph(
        [
            node("MatMul", "encoder_hidden_states wk", "product"),
            node("Unsqueeze", "product axis", "keys"),
            node("Identity", "keys", "made"),
        ],
        "first",
        [],
        outputs,
    )
    nothing = numpy_helper.from_array(np.zeros((0, 1, 1, WORDS), np.float32))
    later = helper.make_graph(
        [
            node("Identity", "past_key_values.0.encoder.key", "keys"),
            helper.make_node("Constant", [], ["made"], value=nothing),
        ],
        "later",
        [],
        outputs,
    )
    branch = helper.make_node(
        "If", ["use_cache_branch"], ["used", "present.0.encoder.key"], then_branch=later, else_branch=first
    )
    nodes = [
        branch,
        node("Gather", "words input_ids", "word"),
        node("Unsqueeze", "word axis", "own"),
        node("Concat", "past_key_values.0.decoder.key own", "present.0.decoder.key", axis=2),
        node("ReduceMean", "used", "told", axes=[2], keepdims=0),
        node("Add", "word told", "logits"),
    ]
    cache = ["batch", 1, "past", WORDS]
    inputs = [
        ("input_ids", ["batch", "sequence"], TensorProto.INT64),
        ("encoder_hidden_states", ["batch", "length", 4]),
        ("past_key_values.0.decoder.key", cache),
        ("past_key_values.0.encoder.key", ["batch", 1, "length2", WORDS]),
        ("use_cache_branch", [1], TensorProto.BOOL),
    ]
    results = [
        ("logits", ["batch", "sequence", WORDS]),
        ("present.0.decoder.key", ["batch", 1, "total", WORDS]),
        ("present.0.encoder.key", ["b", 1, "l", WORDS]),
    ]
    weights = {"wk": floats(1, 4, WORDS), "words": floats(2, WORDS, WORDS), "axis": np.array([1], np.int64)}
    onnx.save(model(nodes, inputs, results, weights), path)
    return path


@pytest.mark.parametrize("engine", ENGINES)
def test_what_an_encoder_gave_is_kept(compress, tmp_path, ids, engine):
    before = of_an_encoder(tmp_path / "d.onnx")
    states = floats(3, len(ids), 5, 4)
    np.savez(tmp_path / "both.npz", input_ids=ids, encoder_hidden_states=states)
    by = ["--data", tmp_path / "both.npz", "--device", "cpu", "--metric", "perplexity", "--json", *ENGINES[engine]]
    found = compress("check", before, "--against", before, *by).json()["accuracy"]
    empty = np.zeros((len(ids), 1, 0, WORDS), np.float32)
    feed = {
        "input_ids": ids,
        "encoder_hidden_states": states,
        "past_key_values.0.decoder.key": empty,
        "past_key_values.0.encoder.key": empty,
        "use_cache_branch": np.array([False]),
    }
    at_once = session(before).run(["logits"], feed)[0].astype(np.float64)
    assert found["before"] == pytest.approx(perplexity(at_once, ids), rel=1e-4)


def test_numbers_of_32_bits_and_one_sample_at_a_time(compress, tmp_path, ids):
    """A decoder that fixes its batch, whose scores have another name."""
    whole, path = onnx.load(decoder(tmp_path / "d.onnx")), tmp_path / "one.onnx"
    for value in [*whole.graph.input, *whole.graph.output]:
        value.type.tensor_type.shape.dim[0].dim_value = 1
    tokens = whole.graph.input[0]
    assert tokens.name == "input_ids"
    tokens.type.tensor_type.elem_type = TensorProto.INT32
    (head,) = (n for n in whole.graph.node if "logits" in n.output)
    head.output[0] = whole.graph.output[0].name = "votes"
    onnx.save(whole, path)
    np.savez(tmp_path / "i32.npz", input_ids=ids.astype(np.int32))
    by = ["--data", tmp_path / "i32.npz", "--device", "cpu", "--metric", "perplexity", "--json"]
    found = compress("check", path, "--against", path, *by).json()["accuracy"]
    assert found["before"] == pytest.approx(perplexity(scores(tmp_path / "d.onnx", ids), ids), rel=1e-4)


def test_a_fixed_number_of_tokens_is_taken_at_once(compress, tmp_path, ids):
    whole, path = onnx.load(decoder(tmp_path / "d.onnx")), tmp_path / "fixed.onnx"
    whole.graph.input[0].type.tensor_type.shape.dim[1].dim_value = LENGTH
    onnx.save(whole, path)
    by = ["--data", tmp_path / "ids.npz", "--device", "cpu", "--metric", "perplexity", "--json"]
    found = compress("check", path, "--against", path, *by).json()["accuracy"]
    assert found["before"] == pytest.approx(perplexity(scores(tmp_path / "d.onnx", ids), ids), rel=1e-4)


def test_arrays_that_nothing_reads_are_named(compress, tmp_path, ids):
    path = decoder(tmp_path / "d.onnx")
    np.savez(tmp_path / "padded.npz", input_ids=ids, attention_mask=np.ones_like(ids))
    done = compress("check", path, "--against", path, "--data", tmp_path / "padded.npz", "--device", "cpu")
    assert "nothing reads `attention_mask` of the data" in done.out + done.err


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


def test_how_fast_a_decoder_reads_and_writes(compress, tmp_path, ids):
    path = decoder(tmp_path / "d.onnx")
    args = ("bench", path, "--data", tmp_path / "ids.npz", "--batch", 2, "--runs", 3, "--device", "cpu")
    speed = compress(*args, "--json").json()["decoding"]
    assert speed["prompt"] == LENGTH - 8
    assert speed["tokens_per_second"] == pytest.approx(2e3 / speed["token_ms"])
    # What is multiplied by: all but the table of places; the table of words is the head too.
    weights = [numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer if t.name != "places"]
    bytes_of = sum(w.nbytes for w in weights)
    assert speed["weights_gb_per_second"] == pytest.approx(bytes_of / speed["token_ms"] / 1e6)
    assert f"{LENGTH - 8} tokens at once" in compress(*args).out
