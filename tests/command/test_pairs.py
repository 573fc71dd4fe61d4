"""Encoder–decoder pairs, of which each half is a file: `--encoder` makes what the decoder reads."""

import numpy as np
import onnx
import pytest
from decoders import LENGTH, WIDTH, WORDS, decoder
from onnx import helper, numpy_helper
from small import FLOAT, floats, model, node
from support import read_report, run_onnx, session

FRAMES, BANDS = 6, 5


def encoder(path, width=WIDTH, output="last_hidden_state", batch="batch"):
    """Features of sound to states, with a mask that it passes over."""
    nodes = [node("MatMul", "input_features e", "m"), node("Tanh", "m", output)]
    inputs = [("input_features", [batch, "frames", BANDS])]
    weights = {"e": floats(70, BANDS, width)}
    onnx.save(model(nodes, inputs, [(output, [batch, "frames", width])], weights), path)
    return path


def of_pair(path):
    """A decoder whose words also depend on the mean of an encoder's states."""
    made = onnx.load(decoder(path))
    for n in made.graph.node:
        if list(n.output) == ["x"]:
            n.output[0] = "words_and_places"
    at = next(i for i, n in enumerate(made.graph.node) if "words_and_places" in n.output) + 1
    extra = [
        node("ReduceMean", "encoder_hidden_states", "mean", axes=[1], keepdims=1),
        node("MatMul", "mean across", "told"),
        node("Add", "words_and_places told", "x"),
    ]
    for n in reversed(extra):
        made.graph.node.insert(at, n)
    states = helper.make_tensor_value_info("encoder_hidden_states", FLOAT, ["batch", "frames", WIDTH])
    made.graph.input.append(states)
    made.graph.initializer.append(numpy_helper.from_array(floats(71, WIDTH, WIDTH), "across"))
    onnx.save(made, path)
    return path


def ids_of(count):
    """Sequences of which the sound decides the second word, which nothing else tells."""
    sound = floats(72, count, FRAMES, BANDS)
    second = np.where(sound[..., 0].mean(1) > 0, 10, 20)
    ids = (second[:, None] + np.arange(-1, LENGTH - 1)[None]) % WORDS
    ids[:, 0] = 0
    return sound, ids


@pytest.fixture
def pair(tmp_path):
    """An encoder, a decoder, data of both, and the same data with the states made already."""
    first, second = encoder(tmp_path / "encoder.onnx"), of_pair(tmp_path / "decoder.onnx")
    sound, ids = ids_of(48)
    np.savez(tmp_path / "pair.npz", input_features=sound, decoder_input_ids=ids)
    [states] = run_onnx(first, {"input_features": sound})
    np.savez(tmp_path / "states.npz", encoder_hidden_states=states, input_ids=ids)
    return first, second, tmp_path / "pair.npz", tmp_path / "states.npz"


def codes(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


@pytest.mark.parametrize("how", [["--weights", "int8"], ["--int8"], ["--prune", "0.5", "--epochs", "0"]])
def test_states_made_on_the_way_are_those_made_before(compress, pair, tmp_path, how):
    first, second, data, states = pair
    figures = {}
    for name, args in (("on", ["--encoder", first, "--data", data]), ("before", ["--data", states])):
        out = tmp_path / f"{name}.onnx"
        compress(second, *how, *args, "-o", out, "--check", "full")
        figures[name] = read_report(out.with_suffix(".report.json"))["accuracy"]
    on, before = figures["on"], figures["before"]
    assert on["metric"] == before["metric"] == "next-token"
    assert on["after"] == pytest.approx(before["after"], abs=0.02)
    for a, b in zip(*(codes(tmp_path / f"{n}.onnx").values() for n in ("on", "before")), strict=True):
        assert a.shape == b.shape and np.isclose(a.astype(float), b.astype(float), atol=1.1, rtol=0.1).mean() > 0.99


@pytest.mark.slow
def test_a_decoder_learns_what_its_encoder_tells(compress, pair, tmp_path):
    first, second, data, _ = pair
    sound, ids = ids_of(256)
    np.savez(data, input_features=sound, decoder_input_ids=ids)
    out = tmp_path / "trained.onnx"
    args = ("--encoder", first, "--data", data, "--epochs", 30, "--batch", 32, "--lr", "0.01", "--device", "cpu")
    compress("distill", second, *args, "--from-nothing", "-o", out)
    model = session(out)
    [states] = run_onnx(first, {"input_features": sound})
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "encoder_hidden_states": states}
    feed["position_ids"] = np.arange(LENGTH)[None].repeat(len(ids), 0)
    caches = {
        i.name: np.zeros((len(ids), 2, 0, WIDTH // 2), np.float32) for i in model.get_inputs() if "past" in i.name
    }
    # Without the states half of the second words are right.
    second_token = model.run(["logits"], feed | caches)[0][:, 0].argmax(-1)
    assert (second_token == ids[:, 1]).mean() > 0.8


def test_an_encoder_of_a_fixed_batch_gives_its_batch(compress, pair, tmp_path):
    _, second, data, _ = pair
    fixed = encoder(tmp_path / "fixed.onnx", output="anything", batch=3)
    compress(second, "--weights", "int8", "--encoder", fixed, "--data", data, "-o", tmp_path / "out.onnx")


def test_check_runs_the_encoder_too(compress, pair, tmp_path):
    first, second, data, _ = pair
    out = tmp_path / "out.onnx"
    compress(second, "--weights", "int8", "-o", out, "--check", "none")
    said = compress("check", out, "--against", second, "--encoder", first, "--data", data, "--min-score", "0.5")
    assert "next-token" in said.out


def test_masks_of_both_are_told_apart(compress, pair, tmp_path):
    """The encoder's mask is the decoder's `encoder_attention_mask`, in its type; a mask that the data has for the decoder is its own."""
    first, second, _, _ = pair
    made = onnx.load(first)
    made.graph.input.append(
        helper.make_tensor_value_info("attention_mask", onnx.TensorProto.INT32, ["batch", "frames"])
    )
    made.graph.node.extend(
        [
            node("Cast", "attention_mask", "counts", to=FLOAT),
            node("Unsqueeze", "counts last", "each"),
            node("Mul", "last_hidden_state each", "kept"),
        ]
    )
    made.graph.initializer.append(numpy_helper.from_array(np.array([2]), "last"))
    made.graph.output[0].name = "kept"
    onnx.save(made, first)
    made = onnx.load(second)
    mask = helper.make_tensor_value_info("encoder_attention_mask", onnx.TensorProto.INT64, ["batch", "frames"])
    made.graph.input.append(mask)
    made.graph.node.append(node("ReduceSum", "encoder_attention_mask", "frames_kept", keepdims=0))
    made.graph.output.append(helper.make_tensor_value_info("frames_kept", onnx.TensorProto.INT64, []))
    onnx.save(made, second)
    sound, ids = ids_of(48)
    mask = np.ones((48, FRAMES), np.int32)
    mask[::3, 4:] = 0
    np.savez(tmp_path / "data.npz", input_features=sound, attention_mask=mask, decoder_input_ids=ids)
    args = ("--weights", "int8", "--encoder", first, "--data", tmp_path / "data.npz", "--json")
    report = compress(second, *args, "-o", tmp_path / "out.onnx").json()
    assert report["accuracy"]["metric"] == "next-token" and report["accuracy"]["after"] > 0.8


@pytest.mark.parametrize(
    ("spoilt", "code", "said"),
    [
        ("width", 7, "makes [1, 6, 8] for the decoder's `encoder_hidden_states`, which takes [?, ?, 32]"),
        ("itself", 2, "reads nothing that --encoder makes"),
        ("no data", 2, "--encoder needs --data or --eval"),
        ("no tokens", 7, "decoder_input_ids"),
        ("nowhere", 6, "nowhere.onnx"),
    ],
)
def test_what_does_not_fit_is_refused(compress, pair, tmp_path, spoilt, code, said):
    first, second, data, states = pair
    given = {
        "width": [encoder(tmp_path / "wide.onnx", 8), "--data", data],
        "itself": [second, "--data", states],
        "no data": [first],
        "no tokens": [first, "--data", states],
        "nowhere": [tmp_path / "nowhere.onnx", "--data", data],
    }[spoilt]
    found = compress(second, "--weights", "int8", "-o", tmp_path / "out.onnx", "--encoder", *given, code=code)
    assert said in found.err
    assert not (tmp_path / "out.onnx").exists()
