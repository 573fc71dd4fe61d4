"""`check --baseline`: figures beside those that were accepted last."""

import re
import tomllib

import numpy as np
import onnx
import pytest
import small
from onnx import TensorProto, numpy_helper
from support import ROOT, run_command

DIGITS = ROOT / "models" / "digits"
AGAINST = ("--against", DIGITS / "digits.onnx", "--eval", DIGITS / "test.npz")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The digits network in INT8."""
    out = tmp_path_factory.mktemp("baseline") / "int8.onnx"
    run_command(DIGITS / "digits.onnx", "--int8", "--data", DIGITS / "train.npz", "-o", out, "--no-check")
    return out


def worse(model, path, noise):
    """The model with noise in the scales of its weights."""
    made, rng = onnx.load(model), np.random.default_rng(0)
    for t in made.graph.initializer:
        values = numpy_helper.to_array(t)
        if values.dtype == np.float32 and values.size > 1:
            t.CopyFrom(
                numpy_helper.from_array(
                    (values * (1 + noise * rng.standard_normal(values.shape))).astype(np.float32), t.name
                )
            )
    onnx.save(made, path)


def accept_speed(file, speedup):
    """Puts a speed-up in the place of those that were accepted: what a test says of a gate doesn't hang on the load of the machine."""
    text, n = re.subn(r"^speedup = .*$", f"speedup = {speedup}", file.read_text(), flags=re.MULTILINE)
    assert n
    file.write_text(text)


def test_figures_are_accepted_and_held(compress, model, tmp_path):
    file = tmp_path / "baseline.toml"
    missing = compress("check", model, *AGAINST, "--baseline", file, code=6)
    assert "--update-baseline" in missing.err
    accepted = compress("check", model, *AGAINST, "--baseline", file, "--update-baseline")
    assert "has the figures of this run now" in accepted.out
    kept = tomllib.loads(file.read_text())[str(model)]
    assert kept["size"] == model.stat().st_size and kept["metric"] == "top1" and kept["score"] > 0.99
    assert list(kept) == ["size", "metric", "score", "sqnr-db", "speedup", "timed-on", "against", "data"]
    for accepted, code, verdict in ((0.01, 0, "passed"), (1000.0, 9, "failed")):
        accept_speed(file, accepted)
        again = compress("check", model, *AGAINST, "--baseline", file, "--json", code=code).json()
        held = {g["figure"]: g for g in again["gates"]}
        assert set(held) == {"size", "accuracy", "output SQNR", "speed"}
        assert all(held[name]["verdict"] == "passed" for name in ("size", "accuracy", "output SQNR"))
        assert held["speed"]["verdict"] == verdict
    # To accept the same figures again changes nothing of those that a run gives exactly.
    compress("check", model, *AGAINST, "--baseline", file, "--update-baseline")
    after = tomllib.loads(file.read_text())[str(model)]
    assert {k: v for k, v in after.items() if k != "speedup"} == {k: v for k, v in kept.items() if k != "speedup"}


def test_what_got_worse_fails(compress, model, tmp_path):
    file, changed = tmp_path / "baseline.toml", tmp_path / "model.onnx"
    changed.write_bytes(model.read_bytes())
    compress("check", changed, *AGAINST, "--baseline", file, "--update-baseline")
    accepted = file.read_text()
    worse(model, changed, 0.3)
    failed = compress("check", changed, *AGAINST, "--baseline", file, code=9)
    assert (
        "gate --baseline: FAILED" in failed.out and "output SQNR" in failed.out and "error: gate failed" in failed.err
    )
    # A gate that fails keeps the figures from being accepted.
    refused = compress("check", changed, *AGAINST, "--baseline", file, "--update-baseline", "--min-sqnr", 40, code=9)
    assert "not accepted" in refused.err and file.read_text() == accepted
    # The original is larger, and slower.
    changed.write_bytes((DIGITS / "digits.onnx").read_bytes())
    larger = compress("check", changed, *AGAINST, "--baseline", file, "--json", code=9).json()
    verdicts = {g["figure"]: g["verdict"] for g in larger["gates"]}
    assert verdicts["size"] == "failed" and verdicts["accuracy"] == verdicts["output SQNR"] == "passed"


def test_figures_of_something_else_are_not_compared(compress, model, tmp_path):
    file, data = tmp_path / "baseline.toml", tmp_path / "part.npz"
    compress("check", model, *AGAINST, "--baseline", file, "--update-baseline")
    test = np.load(DIGITS / "test.npz")
    np.savez(data, x=test["x"][:100], y=test["y"][:100])
    other = ("--against", DIGITS / "digits.onnx", "--eval", data, "--baseline", file)
    assert "another data" in compress("check", model, *other, code=7).err
    assert (
        "another metric" in compress("check", model, *AGAINST, "--metric", "agreement", "--baseline", file, code=7).err
    )
    assert "has no figures of" in compress("check", DIGITS / "digits.onnx", *AGAINST, "--baseline", file, code=6).err
    # Ratios of other kernels are told apart, and can't fail.
    gates = compress("check", model, *AGAINST, "--baseline", file, "--engine", "portable", "--json").json()["gates"]
    assert [g["verdict"] for g in gates if g["figure"] == "speed"] == ["unclear"]
    file.write_text("nothing of the kind")
    assert "is not a baseline" in compress("check", model, *AGAINST, "--baseline", file, code=2).err
    assert "needs data" in compress("check", model, *AGAINST[:2], "--baseline", file, code=7).err
    assert "has no effect" in compress("check", model, *AGAINST, "--update-baseline", code=2).err


def test_equal_outputs_are_the_best_and_unusable_ones_are_not_accepted(compress, model, tmp_path):
    file, changed = tmp_path / "baseline.toml", tmp_path / "model.onnx"
    changed.write_bytes((DIGITS / "digits.onnx").read_bytes())
    compress("check", changed, *AGAINST, "--baseline", file, "--update-baseline")
    assert tomllib.loads(file.read_text())[str(changed)]["sqnr-db"] == float("inf")
    accept_speed(file, 0.01)
    kept = compress("check", changed, *AGAINST, "--baseline", file, "--json").json()
    assert {g["figure"]: g["verdict"] for g in kept["gates"]}["output SQNR"] == "passed"
    changed.write_bytes(model.read_bytes())
    noisier = compress("check", changed, *AGAINST, "--baseline", file, "--json", code=9).json()
    assert {g["figure"]: g["verdict"] for g in noisier["gates"]}["output SQNR"] == "failed"
    accepted = file.read_text()
    worse(model, changed, 30.0)
    refused = compress("check", changed, *AGAINST, "--baseline", file, "--update-baseline", code=9)
    assert "UNUSABLE" in refused.out and "not accepted" in refused.err and file.read_text() == accepted


def test_a_baseline_is_a_regular_file_and_no_other_report(compress, model, tmp_path):
    import os

    pipe, file = tmp_path / "pipe", tmp_path / "baseline.toml"
    os.mkfifo(pipe)
    assert "not a regular file" in compress("check", model, *AGAINST, "--baseline", pipe, code=6).err
    both = ("--baseline", file, "--update-baseline", "--markdown", file)
    assert "would replace a file of the job" in compress("check", model, *AGAINST, *both, code=2).err
    twice = ("--markdown", tmp_path / "r", "--junit", tmp_path / "r")
    assert "two reports" in compress("check", model, *AGAINST, *twice, code=2).err


def test_a_file_holds_several_models_in_order(compress, model, tmp_path):
    file = tmp_path / "baseline.toml"
    names = [tmp_path / name for name in ("b.onnx", "a.onnx")]
    for name in names:
        name.write_bytes(model.read_bytes())
        compress("check", name, *AGAINST, "--baseline", file, "--update-baseline")
    assert list(tomllib.loads(file.read_text())) == sorted(map(str, names))


def test_outputs_of_other_sizes_are_not_equal(compress, tmp_path):
    """A detector that finds another number of things has no noise that can be measured."""
    path, data = tmp_path / "found.onnx", tmp_path / "data.npz"

    def finds(above, path):
        nodes = [small.node("Greater", "x least", "is"), small.node("NonZero", "is", "y")]
        least = {"least": np.float32([above])}
        onnx.save(small.model(nodes, [("x", ["n", 16])], [("y", [2, "found"], TensorProto.INT64)], least), path)
        return path

    np.savez(data, x=np.random.default_rng(0).uniform(size=(8, 16)).astype(np.float32))
    how = ["--against", finds(0.5, tmp_path / "old.onnx"), "--data", data, "--baseline", tmp_path / "baseline.toml"]
    compress("check", finds(0.5, path), *how, "--update-baseline")
    again = compress("check", finds(0.9, path), *how, "--json", code=9).json()
    assert {g["figure"]: g["verdict"] for g in again["gates"]}["output SQNR"] == "failed"
    accepted = (tmp_path / "baseline.toml").read_bytes()
    assert "can't be compared" in compress("check", path, *how, "--update-baseline").err
    assert (tmp_path / "baseline.toml").read_bytes() == accepted
