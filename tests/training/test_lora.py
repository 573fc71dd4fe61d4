"""`distill --lora`: updates of low rank are trained in the place of weights."""

import signal
import subprocess
import time

import numpy as np
import onnx
import pytest
from decoders import decoder, perplexity, scores, sequences
from onnx import numpy_helper
from small import floats, model, node
from support import binary, read_report, run_onnx, started

QUICK = ["--batch", 32, "--lr", "0.02", "--device", "cpu"]


def weights(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def rank(change):
    values = np.linalg.svd(change.astype(np.float64), compute_uv=False)
    return int((values > 1e-4 * values[0]).sum()) if values[0] > 0 else 0


def training(out):
    return read_report(out.with_suffix(".report.json"))["training"]


@pytest.fixture
def other_texts(tmp_path):
    """Sequences that go the other way round than those that the model would have learnt."""
    ids = sequences(tmp_path / "train.npz", 320)[:, ::-1].copy()
    np.savez(tmp_path / "train.npz", input_ids=ids[:256])
    np.savez(tmp_path / "test.npz", input_ids=ids[256:])
    return ["--data", tmp_path / "train.npz", "--eval", tmp_path / "test.npz"], ids[256:]


@pytest.mark.slow
def test_a_decoder_learns_by_updates_of_a_low_rank(compress, tmp_path, other_texts):
    data, ids = other_texts
    whole, out = decoder(tmp_path / "d.onnx", layers=(0, 1)), tmp_path / "out.onnx"
    said = compress("distill", whole, *data, "--lora", 4, "--epochs", 12, "-o", out, *QUICK)
    found, (before, after) = training(out), (weights(whole), weights(out))
    assert found["after"] < 0.75 * found["before"], found
    assert found["after"] == pytest.approx(perplexity(scores(out, ids), ids), rel=1e-3)
    # Eight matrices of 32 x 32.
    assert found["parameters"] == 8 * 4 * (32 + 32)
    products = {f"{layer}w{part}" for layer in ("", "layer1.") for part in "qkvo"}
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == products
    assert all(1 <= rank(after[name] - before[name]) <= 4 for name in products)
    # The table of words is looked up in too.
    assert "leaves `words` as" in said.err
    assert [n.op_type for n in onnx.load(whole).graph.node] == [n.op_type for n in onnx.load(out).graph.node]


@pytest.mark.slow
def test_a_job_that_is_stopped_ends_with_the_same_bytes(compress, tmp_path, other_texts):
    data, _ = other_texts
    args = ["distill", decoder(tmp_path / "d.onnx"), *data, "--lora", 2, *QUICK, "--epochs", 6, "--save-every", "0.05s"]
    whole, parts = tmp_path / "whole.onnx", tmp_path / "parts.onnx"
    compress(*args, "-o", whole, "--threads", 2)
    stopped = started(list(map(str, [binary(), *args, "-o", parts])), stderr=subprocess.PIPE, text=True)
    log = tmp_path / "parts.job" / "metrics.jsonl"
    while stopped.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") < 10):
        time.sleep(0.002)
    stopped.send_signal(signal.SIGINT)
    _, said = stopped.communicate()
    assert stopped.returncode == 130 and not parts.exists(), said
    compress(*args, "-o", parts, "--resume", "--threads", 1)
    assert whole.read_bytes() == parts.read_bytes()


def products(path):
    """Two products by one matrix, one by a matrix that is turned before, a Gemm, and one of two rows."""
    nodes = [
        node("MatMul", "x shared", "a"),
        node("Relu", "a", "b"),
        node("MatMul", "b shared", "c"),
        node("Transpose", "stored", "turned", perm=[1, 0]),
        node("MatMul", "c turned", "d"),
        node("Gemm", "d gemm bias", "e", transB=1),
        node("MatMul", "e thin", "y"),
    ]
    shared = {"shared": floats(1, 16, 16, scale=0.3), "stored": floats(2, 12, 16, scale=0.3)}
    rest = {"gemm": floats(3, 10, 12, scale=0.3), "bias": floats(4, 10), "thin": floats(5, 10, 2)}
    onnx.save(model(nodes, [("x", ["N", 16])], [("y", ["N", 2])], shared | rest), path)
    return path


@pytest.fixture
def taught(tmp_path):
    """A student, its data, and a teacher that differs in all products."""
    student = products(tmp_path / "student.onnx")
    teacher = onnx.load(student)
    for seed, t in enumerate(teacher.graph.initializer, start=20):
        value = numpy_helper.to_array(t)
        t.CopyFrom(numpy_helper.from_array(value + floats(seed, *value.shape, scale=0.1), t.name))
    onnx.save(teacher, tmp_path / "teacher.onnx")
    np.savez(tmp_path / "data.npz", x=floats(7, 512, 16))
    return student, ["--teacher", tmp_path / "teacher.onnx", "--data", tmp_path / "data.npz"]


def test_updates_are_added_to_weights_however_they_are_stored(compress, tmp_path, taught):
    student, by = taught
    out = tmp_path / "out.onnx"
    said = compress("distill", student, *by, "--lora", 3, "--epochs", 10, "-o", out, *QUICK)
    before, after, x = weights(student), weights(out), floats(9, 64, 16)
    for name in ("shared", "stored", "gemm"):
        assert 1 <= rank(after[name] - before[name]) <= 3, name
    for name in ("bias", "thin"):
        assert np.array_equal(before[name], after[name])
    assert "leaves `thin` as" in said.err
    wanted, first, last = (run_onnx(m, {"x": x})[0] for m in (by[1], student, out))
    assert np.square(last - wanted).mean() < 0.5 * np.square(first - wanted).mean()


def test_frozen_weights_have_no_update(compress, tmp_path, taught):
    student, by = taught
    args = ("distill", student, *by, "--lora", 3, "--epochs", 2, "-o", tmp_path / "out.onnx", *QUICK)
    compress(*args, "--freeze", "shared|gemm")
    before, after = weights(student), weights(tmp_path / "out.onnx")
    assert {name for name in before if not np.array_equal(before[name], after[name])} == {"stored"}


@pytest.mark.parametrize(("frozen", "name"), [("_down", "bias"), ("_up", "thin")])
def test_names_of_updates_are_not_frozen(compress, tmp_path, taught, frozen, name):
    """A name that a weight has, and that updates of others might have."""
    student, by = taught
    for path in (student, by[1]):
        made = onnx.load(path)
        for named in [*made.graph.initializer, *made.graph.node]:
            if named.name == name:
                named.name += frozen
        for n in made.graph.node:
            n.input[:] = [i + frozen if i == name else i for i in n.input]
        onnx.save(made, path)
    args = ("distill", student, *by, "--lora", 3, "--epochs", 2, "-o", tmp_path / "out.onnx", *QUICK)
    compress(*args, "--freeze", frozen)
    # Both factors of each update are trained.
    assert training(tmp_path / "out.onnx")["parameters"] == 3 * (16 + 16 + 16 + 12 + 12 + 10)
    before, after = weights(student), weights(tmp_path / "out.onnx")
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"shared", "stored", "gemm"}


def test_other_ways_to_read_a_weight(compress, tmp_path):
    """A matrix behind Identity, as exporters tie weights; and a product whose result is scaled, which is named."""
    nodes = [
        node("Identity", "w", "same"),
        node("MatMul", "x w", "a"),
        node("MatMul", "a same", "b"),
        node("Gemm", "b v", "y", alpha=0.5),
    ]
    given = {"w": floats(1, 16, 16, scale=0.3), "v": floats(2, 16, 8, scale=0.3)}
    onnx.save(model(nodes, [("x", ["N", 16])], [("y", ["N", 8])], given), tmp_path / "m.onnx")
    changed = {name: value + floats(3, *value.shape, scale=0.1) for name, value in given.items()}
    onnx.save(model(nodes, [("x", ["N", 16])], [("y", ["N", 8])], changed), tmp_path / "t.onnx")
    np.savez(tmp_path / "data.npz", x=floats(7, 512, 16))
    args = ("--teacher", tmp_path / "t.onnx", "--data", tmp_path / "data.npz", "--lora", 3, "--epochs", 5, *QUICK)
    said = compress("distill", tmp_path / "m.onnx", *args, "-o", tmp_path / "out.onnx")
    after = weights(tmp_path / "out.onnx")
    assert "leaves `v` as" in said.err and np.array_equal(after["v"], given["v"])
    assert 1 <= rank(after["w"] - given["w"]) <= 3


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--lora", "64"], 5, "no weight can have an update of this rank"),
        (["--lora", "4", "--from-nothing"], 2, "updates weights that were trained"),
        (["--lora", "0"], 2, "--lora"),
    ],
)
def test_what_makes_no_sense_is_refused(compress, tmp_path, taught, args, code, said):
    student, by = taught
    found = compress("distill", student, *by, *args, "-o", tmp_path / "out.onnx", *QUICK, code=code)
    assert said in found.err
    assert not (tmp_path / "out.onnx").exists()
