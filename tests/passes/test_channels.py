"""Channels that really go: `--prune-channels`, and `inspect --groups`."""

import re

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import small
from small import floats, model, node, save
from support import ROOT, run_command, run_onnx

pytestmark = pytest.mark.slow

DIGITS = ROOT / "models/digits"
MODEL, TRAIN, TEST = DIGITS / "digits.onnx", DIGITS / "train.npz", DIGITS / "test.npz"


@pytest.fixture
def cut(compress, tmp_path):
    """Runs the command without asking whether it pays; the report, and the right answers of the result in ONNX Runtime."""

    def run(*flags, model=MODEL):
        out = tmp_path / "out.onnx"
        report = compress(model, "-o", out, "--force", "--json", "--eval", TEST, "--cut-anyway", *flags).json()
        onnx.checker.check_model(str(out), full_check=True)
        session = ort.InferenceSession(str(out), providers=["CPUExecutionProvider"])
        data = np.load(TEST)
        made = session.run(None, {session.get_inputs()[0].name: data["x"]})[0]
        return report, (made.argmax(1) == data["y"]).mean()

    return run


def macs(report):
    return report["output"]["macs"] / report["input"]["macs"]


@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.75])
def test_multiply_accumulates_go(cut, fraction):
    report, top1 = cut("--prune-channels", fraction, "--data", TRAIN, "--epochs", 0, "--round-channels", 1)
    # One channel more or less is some percent of a network as small as this.
    assert 1 - fraction - 0.06 <= macs(report) <= 1 - fraction
    assert top1 == pytest.approx(report["accuracy"]["after"], abs=1e-3)


def test_parameters_are_a_budget_too(cut):
    report, _ = cut("--prune-channels", 0.5, "--channels-budget", "parameters", "--data", TRAIN, "--epochs", 0)
    assert report["output"]["parameters"] <= 0.55 * report["input"]["parameters"]


def test_solving_keeps_more_than_slicing(cut):
    flags = ["--prune-channels", 0.8, "--channels-by", "l2", "--data", TRAIN, "--epochs", 0]
    sliced, _ = cut(*flags, "--prune-by", "magnitude")
    solved, _ = cut(*flags)
    assert macs(solved) == macs(sliced)
    assert solved["accuracy"]["sqnr_db"] > sliced["accuracy"]["sqnr_db"] + 3


def test_training_keeps_more_than_solving(cut):
    flags = ["--prune-channels", 0.98, "--round-channels", 1, "--data", TRAIN]
    solved, before = cut(*flags, "--epochs", 0)
    trained, after = cut(*flags, "--epochs", 8)
    assert macs(solved) == macs(trained)
    assert after > before + 0.02


def test_channels_weights_and_codes_in_one_command(cut):
    report, top1 = cut(
        "--prune-channels", 0.4, "--prune", 0.5, "--int8", "--effort", "quick", "--data", TRAIN, "--epochs", 3
    )
    assert macs(report) < 0.62 and top1 > 0.98
    assert {"channels", "prune", "recover", "int8"} <= {p["name"] for p in report["passes"]}
    assert all(layer["precision"] == "int8" for layer in report["layers"])


def test_what_does_not_pay_is_not_done(compress, tmp_path):
    # Nothing is as fast as nothing: of a network of one row there is no time to win.
    made = small.mlp(batch=1, width=16)
    model = small.save(made, tmp_path)
    report = compress(
        model, "-o", tmp_path / "out.onnx", "--json", "--prune-channels", 0.25, "--round-channels", 1
    ).json()
    removed = report["output"]["parameters"] < report["input"]["parameters"]
    said = [w for w in report["warnings"] if w.startswith("--prune-channels")]
    assert len(said) == 1 and ("removed nothing" in said[0]) != removed


def test_nothing_to_cut_is_said(compress, tmp_path):
    made = small.model(
        [small.node("Gemm", "input w", "output", "only", transB=1)],
        [("input", ["batch", 8])],
        [("output", ["batch", 4])],
        {"w": small.floats(1, 4, 8)},
    )
    report = compress(small.save(made, tmp_path), "-o", tmp_path / "out.onnx", "--json", "--prune-channels", 0.5).json()
    assert any(w.startswith("--prune-channels 0.5 removed nothing") for w in report["warnings"])
    skipped = next(p for p in report["passes"] if p["name"] == "channels")["skipped"]
    assert [s["reason"] for s in skipped] == ["it is a graph output"]


def test_excluded_layers_keep_their_weights(cut, tmp_path):
    report, _ = cut("--prune-channels", 0.5, "--exclude", "conv2", "--data", TRAIN, "--epochs", 0)
    skipped = next(p for p in report["passes"] if p["name"] == "channels")["skipped"]
    assert any("--exclude" in s["reason"] for s in skipped)
    # Folding its BatchNormalization scales them; nothing else may.
    shapes = {i.name: list(i.dims) for i in onnx.load(tmp_path / "out.onnx").graph.initializer}
    assert shapes["conv2.weight"] == [64, 32, 3, 3] and shapes["conv3.weight"][0] < 64


def test_groups_are_shown(compress):
    groups = compress("inspect", MODEL, "--groups", "--json").json()
    assert [g["open"] == g["units"] for g in groups] == [True] * (len(groups) - 1) + [False]
    assert groups[-1]["closed"] == ["it is a graph output"]
    text = compress("inspect", MODEL, "--groups").out
    assert "closed: it is a graph output" in text


@pytest.mark.parametrize(
    "flags",
    [
        ["--cut-anyway"],
        ["--channels-by", "l1"],
        ["--channels-budget", "latency"],
        ["--channels-cuts", 2],
        ["--round-channels", 8],
    ],
)
def test_flags_of_channels_need_them(compress, tmp_path, flags):
    said = compress(MODEL, "-o", tmp_path / "out.onnx", *flags, code=2)
    assert "--prune-channels" in said.err


@pytest.mark.parametrize("fraction", ["1", "-0.1", "nan", "half"])
def test_impossible_fractions_are_refused(compress, tmp_path, fraction):
    compress(MODEL, "-o", tmp_path / "out.onnx", "--prune-channels", fraction, code=2)


@pytest.mark.parametrize("flags", [["--prune", 0.5, "--prune-ends"], ["--prune-channels", 0.5, "--cut-anyway"]])
def test_a_weight_without_elements_is_no_layer(compress, tmp_path, flags):
    made = small.model(
        [
            small.node("Gemm", "input w b", "h", "first", transB=1),
            small.node("Relu", "h", "a", "act"),
            small.node("Gemm", "a v", "none", "empty", transB=1),
            small.node("Gemm", "a u", "some", "last", transB=1),
            small.node("Concat", "some none", "output", "joined", axis=1),
        ],
        [("input", ["batch", 8])],
        [("output", ["batch", 4])],
        {
            "w": small.floats(1, 16, 8),
            "b": small.floats(2, 16),
            "v": small.floats(3, 0, 16),
            "u": small.floats(4, 4, 16),
        },
    )
    out = tmp_path / "out.onnx"
    np.savez(tmp_path / "data.npz", input=small.floats(5, 200, 8))
    compress(small.save(made, tmp_path), "-o", out, "--data", tmp_path / "data.npz", "--epochs", 0, *flags)
    session = ort.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    assert session.run(None, {"input": small.floats(6, 3, 8)})[0].shape == (3, 4)


@pytest.mark.parametrize("by", ["reconstruct", "l1", "l2", "median", "scale", "activation", "taylor"])
def test_every_score_meets_the_budget(cut, by):
    report, top1 = cut("--prune-channels", 0.6, "--channels-by", by, "--data", TRAIN, "--epochs", 0)
    # Rounding gives back what it removed beyond the budget.
    assert 0.3 < macs(report) <= 0.4
    assert top1 > 0.9


def test_scores_choose_differently(cut):
    told = set()
    for by in ["reconstruct", "l1", "median", "scale", "activation", "taylor"]:
        report, _ = cut(
            "--prune-channels", 0.6, "--channels-by", by, "--prune-by", "magnitude", "--data", TRAIN, "--epochs", 0
        )
        told.add(report["output"]["sha256"])
    assert len(told) == 6


def without_normalisation(tmp_path):
    return small.save(small.mlp(width=32), tmp_path)


def test_scales_need_normalisation(compress, tmp_path):
    model = without_normalisation(tmp_path)
    flags = ["--prune-channels", 0.5, "--channels-by", "scale", "--cut-anyway"]
    said = compress(model, "-o", tmp_path / "out.onnx", *flags, code=5)
    assert "no channel of the model is scaled by a BatchNormalization" in said.err


def test_what_the_loss_feels_needs_labels(compress, tmp_path):
    data = tmp_path / "data.npz"
    np.savez(data, x=np.load(TRAIN)["x"])
    flags = ["--prune-channels", 0.5, "--channels-by", "taylor", "--data", data, "--epochs", 0, "--cut-anyway"]
    said = compress(MODEL, "-o", tmp_path / "out.onnx", *flags, code=7)
    assert "labels" in said.err


@pytest.mark.parametrize("by", ["activation", "taylor"])
def test_scores_on_data_need_data(compress, tmp_path, by):
    said = compress(MODEL, "-o", tmp_path / "out.onnx", "--prune-channels", 0.5, "--channels-by", by, code=2)
    assert "--data" in said.err


def test_several_cuts_are_trained_in_between(cut):
    report, top1 = cut("--prune-channels", 0.9, "--channels-cuts", 3, "--data", TRAIN, "--epochs", 4)
    trained = next(p for p in report["passes"] if p["name"] == "channels")["trained"]
    # A quarter of four epochs after each of the first two, half of them after the last.
    assert [t["planned"] for t in trained] == [1, 1, 2]
    assert macs(report) <= 0.1 and top1 > 0.97


def test_several_cuts_by_a_score_of_the_original(cut):
    flags = ["--prune-channels", 0.8, "--channels-cuts", 2, "--channels-by", "scale", "--data", TRAIN, "--epochs", 4]
    report, top1 = cut(*flags)
    assert macs(report) <= 0.2 and top1 > 0.97


def test_cuts_before_zeros_are_trained_but_the_last(cut):
    flags = ["--prune-channels", 0.5, "--channels-cuts", 2, "--prune", 0.5, "--data", TRAIN, "--epochs", 2]
    report, _ = cut(*flags)
    trained = {p["name"]: len(p.get("trained", [])) for p in report["passes"]}
    assert trained["channels"] == 1 and trained["recover"] == 1


def test_latency_is_a_budget_too(compress, tmp_path):
    """Of two wide layers, where fewer channels surely take less time."""
    weights = {
        "w1": small.floats(1, 96, 16, 3, 3, scale=0.1),
        "w2": small.floats(2, 96, 96, 3, 3, scale=0.05),
        "w3": small.floats(3, 96, 10, scale=0.1),
    }
    nodes = [
        small.node("Conv", "x w1", "a", "first", pads=[1] * 4),
        small.node("Relu", "a", "ra"),
        small.node("Conv", "ra w2", "b", "second", pads=[1] * 4),
        small.node("Relu", "b", "rb"),
        small.node("GlobalAveragePool", "rb", "p"),
        small.node("Flatten", "p", "f"),
        small.node("MatMul", "f w3", "y", "head"),
    ]
    path = small.save(small.model(nodes, [("x", ["n", 16, 24, 24])], [("y", ["n", 10])], weights), tmp_path)
    np.savez(tmp_path / "data.npz", x=small.floats(4, 40, 16, 24, 24))
    flags = ["--prune-channels", 0.5, "--channels-budget", "latency", "--data", tmp_path / "data.npz", "--epochs", 0]
    report = compress(path, "-o", tmp_path / "out.onnx", "--json", *flags, code=(0, 9)).json()
    (told,) = [w for w in report["warnings"] if w.startswith("--prune-channels")]
    left, whole = map(float, re.search(r"left ([\d.]+) of ([\d.]+) ms", told).groups())
    assert macs(report) < 1 and left < whole


def test_onnx_runtime_gets_blocks_of_sixteen(cut):
    report, _ = cut("--prune-channels", 0.4, "--target", "onnxruntime", "--data", TRAIN, "--epochs", 0)
    (told,) = [w for w in report["warnings"] if w.startswith("--prune-channels")]
    kept = [int(layer.rsplit(" ", 1)[1]) for layer in told.split(": ", 1)[1].split(";")[0].split(", ")]
    assert kept and all(n % 16 == 0 for n in kept)


def dead(tmp_path, reader):
    """Two convolutions, half of the second's channels dead, and an operator that is not a layer and reads them."""
    alive, first = np.ones(32, np.float32), small.floats(1, 16, 3, 3, 3, scale=0.3)
    alive[16:] = 0
    second = small.floats(2, 32, 16, 3, 3, scale=0.1) * alive[:, None, None, None]
    nodes = [
        small.node("Conv", "input w0", "a", "conv0", pads=[1, 1, 1, 1]),
        small.node("Relu", "a", "ra"),
        small.node("Conv", "ra w1", "b", "conv1", pads=[1, 1, 1, 1]),
        small.node("Relu", "b", "rb"),
    ]
    if reader == "ConvTranspose":
        nodes.append(small.node("ConvTranspose", "rb w2", "c", "up", strides=[2, 2], kernel_shape=[2, 2]))
        third = small.floats(3, 32, 8, 2, 2, scale=0.1) * alive[:, None, None, None]
    else:
        nodes.append(small.node("Einsum", "rb w2", "c", "mix", equation="nchw,cd->ndhw"))
        third = small.floats(3, 32, 8, scale=0.1) * alive[:, None]
    nodes += [small.node("Relu", "c", "rc"), small.node("Conv", "rc w3", "output", "last")]
    weights = {"w0": first, "w1": second, "w2": third, "w3": small.floats(4, 4, 8, 1, 1)}
    made = small.model(nodes, [("input", ["batch", 3, 8, 8])], [("output", ["batch", 4, "h", "w"])], weights)
    return small.save(made, tmp_path)


@pytest.mark.parametrize("reader", ["ConvTranspose", "Einsum"])
@pytest.mark.parametrize("by", ["reconstruct", "activation", "l1"])
def test_what_operators_read_that_are_no_layers_counts(compress, tmp_path, reader, by):
    model, out, data = dead(tmp_path, reader), tmp_path / "out.onnx", tmp_path / "data.npz"
    np.savez(data, x=small.floats(5, 100, 3, 8, 8))
    flags = ["--prune-channels", 0.3, "--round-channels", 1, "--channels-by", by, "--cut-anyway", "--epochs", 0]
    report = compress(model, "-o", out, "--data", data, "--json", *flags).json()
    assert macs(report) <= 0.7
    x = small.floats(6, 4, 3, 8, 8)
    want, got = (ort.InferenceSession(str(m)).run(None, {"input": x})[0] for m in (model, out))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("by", ["l1", "l2", "median", "reconstruct"])
def test_every_part_of_a_concatenation_is_rounded(compress, tmp_path, by):
    made = small.model(
        [
            small.node("Conv", "input w0", "a", "narrow"),
            small.node("Conv", "input w1", "b", "wide", pads=[1, 1, 1, 1]),
            small.node("Concat", "a b", "c", axis=1),
            small.node("Relu", "c", "r"),
            small.node("Conv", "r w2", "output", "last"),
        ],
        [("input", ["batch", 8, 8, 8])],
        [("output", ["batch", 4, 8, 8])],
        {
            "w0": small.floats(1, 64, 8, 1, 1, scale=0.3),
            "w1": small.floats(2, 64, 8, 3, 3, scale=0.3),
            "w2": small.floats(3, 4, 128, 1, 1),
        },
    )
    data = tmp_path / "data.npz"
    np.savez(data, x=small.floats(5, 100, 8, 8, 8))
    flags = ["--prune-channels", 0.5, "--channels-by", by, "--target", "onnxruntime", "--cut-anyway", "--epochs", 0]
    out = tmp_path / "out.onnx"
    report = compress(small.save(made, tmp_path), "-o", out, "--data", data, "--json", *flags).json()
    sizes = [i.dims[0] for i in onnx.load(out).graph.initializer if i.name in ("w0", "w1")]
    assert macs(report) <= 0.5
    assert all(n % 16 == 0 and n >= 16 for n in sizes) and sizes[1] < 64
    if by != "reconstruct":
        # Weights of the same spread: neither of the two is preferred by far, though one has nine times as many.
        assert abs(sizes[0] - sizes[1]) <= 32


def test_a_budget_that_is_missed_is_told(cut):
    report, _ = cut("--prune-channels", 0.9, "--exclude", "conv2|conv3", "--data", TRAIN, "--epochs", 0)
    (told,) = [w for w in report["warnings"] if w.startswith("--prune-channels")]
    assert "removed nothing" in told or "more than the 10.0% asked for" in told


def test_nothing_asked_is_nothing_said(cut):
    report, _ = cut("--prune-channels", 0, "--data", TRAIN, "--epochs", 0)
    assert macs(report) == 1 and not any("--prune-channels" in w for w in report["warnings"])


def test_time_is_no_budget_for_what_does_not_run(compress, tmp_path):
    flags = ["--prune-channels", 0.5, "--channels-budget", "latency", "--no-check", "--prune-by", "magnitude"]
    said = compress(MODEL, "-o", tmp_path / "out.onnx", *flags, code=5)
    assert "a budget of latency needs a model that runs here" in said.err


def test_what_taylor_is_for_is_said(compress, tmp_path):
    flags = ["--prune-channels", 0.5, "--prune-by", "taylor", "--data", TRAIN]
    assert "--channels-by taylor" in compress(MODEL, "-o", tmp_path / "out.onnx", *flags, code=2).err


def test_made_up_inputs_have_sizes_that_suit(compress, zoo, tmp_path):
    model = zoo / "models/silero_vad_16k_op15.onnx"
    report = compress(model, "-o", tmp_path / "out.onnx", "--json", "--prune-channels", 0.5).json()
    assert report["speed"]["inputs"] == "input 1x512, state 2x1x128, sr scalar" and macs(report) < 0.6


def test_layers_without_a_bias_answer_as_they_did(tmp_path):
    """Products of three axes, whose bias a sum adds: what reads the remaining channels makes up for the others, as it does in a Gemm."""
    rng = np.random.default_rng(0)
    mix = rng.standard_normal((8, 32)).astype(np.float32)
    weights = {
        "u": floats(1, 32, 64, scale=0.3),
        "ub": floats(2, 64, scale=0.5),
        "v": floats(3, 64, 32, scale=0.2),
        "vb": floats(4, 32),
        "w": floats(5, 32, 64, scale=0.3),
        "wb": floats(6, 64, scale=0.5),
        "h": floats(7, 64, 8, scale=0.2),
    }
    nodes = [
        node("MatMul", "input u", "a", "first"),
        node("Add", "a ub", "b"),
        node("Relu", "b", "c"),
        node("MatMul", "c v", "d", "second"),
        node("Add", "d vb", "e"),
        node("Tanh", "e", "f"),
        node("MatMul", "f w", "g", "third"),
        node("Add", "g wb", "i"),
        node("Relu", "i", "j"),
        node("MatMul", "j h", "output", "head"),
    ]
    errors = {}
    for axes in ([], [4]):
        made = model(nodes, [("input", ["batch", *axes, 32])], [("output", ["batch", *axes, 8])], weights)
        x = (rng.standard_normal((512, *axes, 8)) @ mix).astype(np.float32)
        path, out = save(made, tmp_path), tmp_path / "out.onnx"
        np.savez(tmp_path / "data.npz", input=x)
        asked = ["--prune-channels", 0.4, "--round-channels", 4, "--cut-anyway"]
        run_command(path, *asked, "--data", tmp_path / "data.npz", "--epochs", 0, "-o", out, "--force")
        x = (rng.standard_normal((256, *axes, 8)) @ mix).astype(np.float32)
        before, after = run_onnx(path, {"input": x})[0], run_onnx(out, {"input": x})[0]
        errors[len(axes)] = np.square(after - before).mean() / np.square(before - before.mean()).mean()
    assert errors[1] < 1.5 * errors[0], errors
