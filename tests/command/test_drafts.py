"""Drafts of decoders: layers are left out, and a small model guesses tokens for a large one."""

import numpy as np
import onnx
import pytest
from decoders import LENGTH, WORDS, decoder, scores, sequences
from onnx import helper, numpy_helper
from support import ROOT, read_report, session


@pytest.fixture
def data(tmp_path):
    sequences(tmp_path / "ids.npz", count=80)
    return tmp_path / "ids.npz"


@pytest.fixture
def ids(tmp_path, data):
    return np.load(data)["input_ids"]


@pytest.mark.parametrize("keep, kept", [(1, [0]), (2, [0, 3]), (3, [0, 2, 3])])
def test_layers_that_are_left_compute_what_they_did(compress, tmp_path, ids, keep, kept):
    model, out = decoder(tmp_path / "d.onnx", layers=range(4)), tmp_path / "out.onnx"
    compress(model, "--keep-layers", keep, "-o", out, "--check", "none")
    expected = decoder(tmp_path / "expected.onnx", layers=kept)
    signatures = [[(i.name, i.shape) for i in session(path).get_inputs()] for path in (out, expected)]
    assert signatures[0] == signatures[1]
    assert [o.name for o in session(out).get_outputs()] == [o.name for o in session(expected).get_outputs()]
    np.testing.assert_allclose(scores(out, ids), scores(expected, ids), atol=1e-5)


def test_a_decoder_with_fewer_layers_is_compared_by_its_answers(compress, tmp_path, data):
    """Its caches are fewer, and are not compared."""
    model, out = decoder(tmp_path / "d.onnx", layers=range(3)), tmp_path / "out.onnx"
    compress(model, "--keep-layers", "2", "-o", out, "--data", data, "--eval", data, "--epochs", "0")
    report = read_report(out.with_suffix(".report.json"))
    assert [o["name"] for o in report["accuracy"]["outputs"]] == ["logits"]
    assert not report["accuracy"]["equal"]
    checked = compress("check", out, "--against", model, "--data", data, "--json", code=(0, 9)).json()
    assert checked["accuracy"]["sqnr_db"] == pytest.approx(report["accuracy"]["sqnr_db"], abs=1e-3)


def test_training_wins_back_what_layers_did(compress, tmp_path, data):
    """Perplexity beside that of the model that was taught the data first."""
    model, taught = decoder(tmp_path / "d.onnx", layers=range(3)), tmp_path / "taught.onnx"
    compress(
        "distill", model, "--data", data, "--eval", data, "--epochs", "20", "--lr", "0.01", "--batch", "8", "-o", taught
    )
    found = {}
    for epochs in ("0", "10"):
        out = tmp_path / f"out{epochs}.onnx"
        by = ["--data", data, "--eval", data, "--epochs", epochs, "--metric", "perplexity"]
        compress(taught, "--keep-layers", "1", "-o", out, *by, code=(0, 9))
        found[epochs] = read_report(out.with_suffix(".report.json"))["accuracy"]["after"]
    assert found["10"] < found["0"]


@pytest.mark.parametrize(
    "options, said",
    [
        (["--keep-layers", "4"], "the model has 3 layers"),
        (["--keep-layers", "2", "--stop-after", "fold"], "ends before layers"),
    ],
)
def test_layers_that_stay_are_said(compress, tmp_path, options, said):
    model = decoder(tmp_path / "d.onnx", layers=range(3))
    done = compress(model, *options, "-o", tmp_path / "out.onnx", "--check", "none")
    assert said in done.out + done.err


def test_models_without_such_layers_are_refused(compress, tmp_path):
    refused = compress(ROOT / "models/digits/digits.onnx", "--keep-layers", "1", "-o", tmp_path / "out.onnx", code=5)
    assert "not a decoder with a cache" in refused.err
    one = compress(decoder(tmp_path / "d.onnx"), "--keep-layers", "1", "-o", tmp_path / "one.onnx", "--check", "none")
    assert "the model has 1 layer" in one.out


def drafting(compress, draft, model, data, *options, code=0):
    return compress("check", draft, "--drafts-for", model, "--data", data, "--json", *options, code=code).json()


@pytest.mark.parametrize("engine", ["cpu", "burn"])
def test_a_model_accepts_what_it_would_say_itself(compress, tmp_path, data, engine):
    model = decoder(tmp_path / "d.onnx", layers=range(2))
    options = ["--draft-tokens", "3", "--min-acceptance", "99%", "--device", "cpu"]
    report = drafting(compress, model, model, data, *options, *(["--engine", "burn"] if engine == "burn" else []))
    found = report["drafting"]
    assert found["texts"] == 32 and found["tokens"] == LENGTH // 2
    for way in ("greedy", "sampled"):
        assert found[way]["acceptance"] > 0.99
        # Twelve tokens are three runs of four.
        assert found[way]["tokens_per_run"] == pytest.approx(4, abs=0.1)
        assert found[way]["draft_tokens"] == 3
    assert found["greedy"]["same"] == found["greedy"]["continued"]
    assert [gate["verdict"] for gate in report["gates"]] == ["passed"] * 2


def test_another_model_guesses_worse_and_changes_nothing(compress, tmp_path, data):
    """A draft with other words is wrong almost always. The text stays that of the model, and gates fail."""
    model, other = decoder(tmp_path / "d.onnx"), tmp_path / "other.onnx"
    changed = onnx.load(model)
    words = next(t for t in changed.graph.initializer if t.name == "words")
    rng = np.random.default_rng(3)
    words.raw_data = (0.2 * rng.standard_normal(tuple(words.dims))).astype(np.float32).tobytes()
    onnx.save(changed, other)
    report = drafting(compress, other, model, data, "--draft-tokens", "2", "--min-acceptance", "90%", code=9)
    greedy, sampled = report["drafting"]["greedy"], report["drafting"]["sampled"]
    assert greedy["acceptance"] < 0.5 and greedy["same"] == greedy["continued"]
    # Most of what is drawn from many words that are about as likely is accepted.
    assert sampled["acceptance"] > greedy["acceptance"]
    assert [(gate["figure"], gate["verdict"]) for gate in report["gates"]] == [
        ("greedy", "failed"),
        ("sampled", "failed"),
    ]


def test_what_says_nothing_of_a_draft_is_refused(compress, tmp_path, data):
    model = decoder(tmp_path / "d.onnx")
    small = decoder(tmp_path / "small.onnx", words=WORDS // 2)

    def refused(*options, code):
        return compress("check", model, *options, code=code).err

    drafts_for = ["--drafts-for", model, "--data", data]
    assert "give one of --against and --drafts-for" in refused(code=2)
    assert "give one of --against and --drafts-for" in refused("--against", model, *drafts_for, code=2)
    assert "--draft-tokens has no effect without --drafts-for" in refused(
        "--against", model, "--draft-tokens", "2", code=2
    )
    for option in (["--min-sqnr", "20"], ["--metric", "perplexity"], ["--batch", "4"], ["--as-is"]):
        assert f"{option[0]} has no effect with --drafts-for" in refused(*drafts_for, *option, code=2)
    assert "--drafts-for needs text" in refused("--drafts-for", model, code=7)
    assert "--temperature" in refused(*drafts_for, "--temperature", "0", code=2)
    # Which number of guesses is the fastest differs from run to run, and acceptance with it.
    assert "--min-acceptance needs --draft-tokens" in refused(*drafts_for, "--min-acceptance", "50%", code=2)
    short = tmp_path / "short.npz"
    np.savez(short, input_ids=np.zeros((4, 3), np.int64))
    assert "no text has 4 tokens" in refused("--drafts-for", model, "--data", short, code=7)
    np.savez(short, input_ids=np.load(data)["input_ids"][:8])
    assert "fewer than 100 tell nothing" in refused("--drafts-for", model, "--data", short, code=7)
    # Numbers that the draft doesn't know, in a text of its own words: it has half of them.
    half = tmp_path / "half.npz"
    np.savez(half, input_ids=np.load(data)["input_ids"] % (WORDS // 2))
    assert (
        f"the draft knows {WORDS // 2} tokens, the model {WORDS}"
        in compress("check", small, "--drafts-for", model, "--data", half, code=7).err
    )


def test_models_that_continue_no_text_are_refused(compress, tmp_path, data):
    model = decoder(tmp_path / "d.onnx")
    path = ROOT / "models/digits/digits.onnx"
    assert "not a decoder with a cache" in compress("check", path, "--drafts-for", model, "--data", data, code=5).err


def test_tokens_are_not_taken_back_from_a_cache_that_forgets(compress, tmp_path, data):
    """A cache of the last eight tokens: rejected guesses would stay in it."""
    model, window = decoder(tmp_path / "d.onnx"), tmp_path / "window.onnx"
    changed = onnx.load(model)
    for n in changed.graph.node:
        n.output[:] = [f"whole.{o}" if o.startswith("present") else o for o in n.output]
        n.input[:] = [f"whole.{i}" if i.startswith("present") else i for i in n.input]
    kept = {"first": -8, "end": 2**31, "axis": 2}
    for name, value in kept.items():
        changed.graph.initializer.append(numpy_helper.from_array(np.array([value], np.int64), name))
    for part in ("key", "value"):
        ends = [f"whole.present.0.{part}", *kept], [f"present.0.{part}"]
        changed.graph.node.append(helper.make_node("Slice", *ends))
    onnx.save(changed, window)
    refused = compress("check", window, "--drafts-for", model, "--data", data, code=5)
    assert "its cache doesn't hold a place for each token" in refused.err


def test_the_fastest_of_several_drafts_is_written(compress, tmp_path, data):
    model, out = decoder(tmp_path / "d.onnx", layers=range(4)), tmp_path / "draft.onnx"
    done = compress("draft", model, "--data", data, "--eval", data, "--epochs", "2", "-o", out, "--json", code=(0, 9))
    assert done.code in (0, 9), done.err
    report = done.json()
    found = report["drafting"]
    tried = [(t["layers"], t["weights"]) for t in found["tried"]]
    assert (
        (1, "floats") in tried and (2, "int4") in tried and (4, "int8=dynamic") in tried and (4, "floats") not in tried
    )
    speeds = [t["greedy"]["speedup"] * t["sampled"]["speedup"] for t in found["tried"]]
    assert found["chosen"] == int(np.argmax(speeds))
    caches = [i.name for i in session(out).get_inputs() if i.name.startswith("past")]
    assert len(caches) == 2 * found["tried"][found["chosen"]]["layers"]
    assert read_report(out.with_suffix(".report.json"))["drafting"]["chosen"] == found["chosen"]
    # Nothing but the draft and its report is left.
    assert not list(tmp_path.glob(".compress-draft-*"))
    # It fails where the model is faster alone, and says so.
    slow = all(found[way]["interval"][1] < 1 for way in ("greedy", "sampled"))
    assert (done.code == 9) == slow == (report["unusable"] is not None)


def test_a_draft_of_a_model_of_one_layer_is_in_codes(compress, tmp_path, data):
    model, out = decoder(tmp_path / "d.onnx"), tmp_path / "draft.onnx"
    found = compress("draft", model, "--data", data, "--eval", data, "-o", out, "--json", code=(0, 9)).json()[
        "drafting"
    ]
    assert {t["weights"] for t in found["tried"]} == {"int4", "int8", "int8=dynamic"}


def test_what_draft_can_not_do_is_refused_before_work(compress, tmp_path, data):
    model = decoder(tmp_path / "d.onnx", layers=range(2))

    def refused(*options, code=2):
        return compress("draft", model, "--data", data, *options, code=code).err

    assert "a draft goes to a file" in refused("-o", "-")
    assert "drafts are made in floats too" in refused("--target", "openvino")
    assert "--epochs has no effect" in refused("--keep-layers", "2", "--epochs", "3")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.onnx", "ids.npz"]


def test_a_draft_has_no_more_layers_than_its_model(compress, tmp_path, data):
    model = decoder(tmp_path / "d.onnx", layers=range(2))
    refused = compress("draft", model, "--data", data, "--keep-layers", "3", code=7)
    assert "a draft of 3 layers: the model has 2" in refused.err
