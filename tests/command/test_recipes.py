"""Recipes: every job can be saved, and run again to the same bytes, from its file and from its report."""

import json

import numpy as np
import onnx
import pytest
import small
from support import run_onnx


@pytest.fixture
def cnn(tmp_path):
    path = small.save(small.cnn(), tmp_path)
    x = small.floats(11, 100, 3, 12, 12)
    np.savez(tmp_path / "data.npz", x=x, y=run_onnx(path, {"input": x})[0].argmax(1))
    return path


COMPRESSIONS = [
    ["--int8", "--calibration", "mse", "--exclude", "head"],
    ["--prune", "0.6", "--prune-budget", "layer", "--epochs", "1", "--lr", "0.002", "--seed", "18446744073709551615"],
    ["--prune-pattern", "2:4", "--epochs", "0", "--strip", "--stop-after", "prune"],
    ["--qat", "--epochs", "1", "--max-drop", "57.3%", "--max-size", "1GB", "--min-sqnr", "-50"],
]


@pytest.mark.parametrize("flags", COMPRESSIONS, ids=lambda flags: flags[0])
def test_a_compression_runs_again_to_the_same_bytes(compress, cnn, flags):
    out, saved = cnn.parent / "out.onnx", cnn.parent / "job.toml"
    compress(cnn, *flags, "--data", cnn.parent / "data.npz", "-o", out, "--save-recipe", saved, code=(0, 9))
    first, report = out.read_bytes(), out.with_suffix(".report.json")
    again = cnn.parent / "again.json"
    again.write_text(report.read_text())
    compress("run", saved, "--force", code=(0, 9))
    assert out.read_bytes() == first
    compress("run", again, "--force", code=(0, 9))
    assert out.read_bytes() == first
    assert json.loads(report.read_text())["recipe"] == json.loads(again.read_text())["recipe"]


def test_a_sweep_runs_again(compress, cnn):
    saved = cnn.parent / "job.toml"
    compress(
        cnn, "--sweep", "0.8,0.5", "--data", cnn.parent / "data.npz", "--epochs", "1", "--save-recipe", saved,
        "-o", cnn.parent / "out.onnx", code=(0, 9),
    )
    made = {p.name: p.read_bytes() for p in cnn.parent.glob("out-*.onnx")}
    assert len(made) == 2
    compress("run", saved, "--force", code=(0, 9))
    assert {p.name: p.read_bytes() for p in cnn.parent.glob("out-*.onnx")} == made


def test_jobs_that_only_look_run_again(compress, cnn):
    saved = cnn.parent / "job.toml"
    jobs = [
        ["check", cnn, "--against", cnn, "--data", cnn.parent / "data.npz", "--max-drop", "1%"],
        ["bench", cnn, "--runs", "3", "--shape", "input=1x3x12x12"],
        ["inspect", cnn, "--groups"],
    ]
    for job in jobs:
        first = compress(*job, "--save-recipe", saved, "--json").json()
        again = compress("run", saved, "--json").json()
        assert type(first) is type(again)
        if job[0] == "inspect":
            assert first == again
        saved.unlink()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("job = 'squeeze'", "there is no job `squeeze`"),
        ("job = 3", "job = 3"),
        ("job = 'compress'", "`model` is missing"),
        ("job = 'compress'\nmodel = 'm.onnx'\nprune = 1.5", "not a fraction"),
        ("job = 'compress'\nmodel = 'm.onnx'\nprune = nan", "prune"),
        ("job = 'compress'\nmodel = 'm.onnx'\npruned = 0.5", "the nearest is `prune`"),
        ("job = 'compress'\nmodel = 'm.onnx'\nprune-by = 'size'", "there is no saliency of weights `size`"),
        ("job = 'compress'\nmodel = 'm.onnx'\nmax-drop = 0.5", "it may mean 0.5% or 50%"),
        ("job = 'compress'\nmodel = 'm.onnx'\nepochs = -1", "epochs"),
        ("job = 'check'\nmodel = 'm.onnx'", "`against` is missing"),
        ("job = 'sweep'\nmodel = 'm.onnx'", "needs a fraction"),
        ("job = 'compress'\nmodel = 'm.onnx'\nint8 = 'yes'", "int8"),
        ("job = [", "TOML"),
    ],
)
def test_a_wrong_recipe_says_what_is_wrong(compress, tmp_path, text, says):
    recipe = tmp_path / "job.toml"
    recipe.write_text(text)
    assert says in compress("run", recipe, code=2, cwd=tmp_path).err


def test_a_report_without_a_recipe_is_refused(compress, tmp_path):
    for text in ["{}", "[]", '{"recipe": {"run": 3}}', "no json"]:
        recipe = tmp_path / "report.json"
        recipe.write_text(text)
        compress("run", recipe, code=2)


def test_resuming_is_for_training(compress, cnn):
    recipe = cnn.parent / "job.toml"
    recipe.write_text(f"job = 'compress'\nmodel = '{cnn}'")
    assert "training jobs" in compress("run", recipe, "--resume", code=2).err
    compress("run", recipe, "--dry-run")
    assert [p.name for p in cnn.parent.glob("*compressed*")] == []
    compress("run", recipe)
    onnx.checker.check_model(str(cnn.with_suffix(".compressed.onnx")))
