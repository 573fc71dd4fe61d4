"""Recipes: every job can be saved, and run again to the same bytes, from its file and from its report."""

import subprocess

import numpy as np
import onnx
import pytest
import small
from support import binary, read_report, run_onnx


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
    assert read_report(report)["recipe"] == read_report(again)["recipe"]


def test_a_sweep_runs_again(compress, cnn):
    saved = cnn.parent / "job.toml"
    compress(
        cnn,
        "--sweep",
        "0.8,0.5",
        "--data",
        cnn.parent / "data.npz",
        "--epochs",
        "1",
        "--save-recipe",
        saved,
        "-o",
        cnn.parent / "out.onnx",
        code=(0, 9),
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
        ("job = 'check'\nmodel = 'm.onnx'", "a check compares two models"),
        ("job = 'draft'\nmodel = 'm.onnx'", "`data` is missing"),
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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prune = 0.5\nprune-pattern = '2:4'", "--prune and --prune-pattern exclude each other"),
        ("prune-pattern = '2:4'\nprune-budget = 'layer'", "exclude each other"),
        ("force = true", "unknown key `force`"),
        ("train = 3", "unknown key `train`"),
    ],
)
def test_what_flags_can_not_say_a_recipe_can_not_either(compress, cnn, text, says):
    recipe = cnn.parent / "job.toml"
    recipe.write_text(f"job = 'compress'\nmodel = '{cnn}'\n{text}")
    assert says in compress("run", recipe, code=2).err


def test_a_recipe_names_its_job(compress, tmp_path):
    recipe = tmp_path / "job.toml"
    for text in ["model = 'm.onnx'", ""]:
        recipe.write_text(text)
        assert "`job` is missing" in compress("run", recipe, code=2).err


def test_a_saved_recipe_replaces_nothing(compress, cnn):
    data, before = cnn.parent / "data.npz", cnn.read_bytes()
    job = [cnn, "--int8", "--data", data, "-o", cnn.parent / "out.onnx", "--force"]
    for path in (cnn, data, cnn.parent / "out.onnx", cnn.parent / "out.report.json"):
        assert "would replace" in compress(*job, "--save-recipe", path, code=2).err
    assert cnn.read_bytes() == before and not (cnn.parent / "out.onnx").exists()
    saved = cnn.parent / "job.toml"
    compress("missing.onnx", "--save-recipe", saved, code=6)
    assert not saved.exists(), "a job that could not begin leaves no recipe"
    compress(*job[:-1], "--save-recipe", saved)
    assert "--save-recipe" in compress(*job[:-1], "--save-recipe", saved, code=6).err


def test_a_model_with_a_strange_name_is_compressed(compress, cnn):
    strange = cnn.parent / "m\udcff.onnx"
    strange.write_bytes(cnn.read_bytes())
    compress(strange, "-o", cnn.parent / "out.onnx", "--no-check")
    assert read_report(cnn.parent / "out.report.json")["recipe"]["run"] == {}


def test_what_went_to_standard_output_goes_there_again(compress, cnn):
    report = cnn.parent / "report"
    compress_binary = [binary(), cnn, "--int8", "--no-check", "-o", "-", "--report", report]
    first = subprocess.run(compress_binary, capture_output=True, check=True).stdout
    again = cnn.parent / "again.json"
    again.write_text((report / "report.json").read_text())
    done = subprocess.run([binary(), "run", again, "--force"], capture_output=True, check=True)
    assert done.stdout == first


def test_jobs_that_write_nothing_have_no_dry_run(compress, cnn):
    recipe = cnn.parent / "job.toml"
    recipe.write_text(f"job = 'inspect'\nmodel = '{cnn}'")
    assert "jobs that write a model" in compress("run", recipe, "--dry-run", code=2).err


def recipe(folder, text):
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


def test_a_number_may_stand_for_text_and_one_for_a_list(compress, tmp_path):
    """As on the command line: `weight-bits = 4`, `exclude = "head"`, `sweep = 0.3`."""
    small.save(small.mlp(), tmp_path)
    model = f'model = "{tmp_path / "model.onnx"}"'
    plain = recipe(tmp_path, f'job = "compress"\n{model}\nint8 = true\nweight-bits = 4\nexclude = "nothing.*"')
    refused = compress("run", plain, "--dry-run", code=2)
    assert "matches" in refused.err and "nothing" in refused.err, refused.err
    swept = recipe(tmp_path, f'job = "sweep"\n{model}\nsweep = 0.3')
    assert "0.3" in compress("run", swept, "--dry-run").out


def test_what_a_recipe_says_of_nothing(compress, tmp_path):
    """An empty value, and a key that is like no other."""
    assert "there is no value" in compress("run", recipe(tmp_path, 'job = "bench"\nmodel = ""'), code=2).err
    strange = compress("run", recipe(tmp_path, 'job = "bench"\nmodel = "a"\nxyzzy = 1'), code=2).err
    assert "unknown key `xyzzy`" in strange and "nearest" not in strange


def test_a_report_is_known_by_what_is_in_it(compress, tmp_path):
    """Whatever the name of its file."""
    small.save(small.mlp(), tmp_path)
    compress(tmp_path / "model.onnx", "-o", tmp_path / "out.onnx")
    (tmp_path / "kept").write_bytes((tmp_path / "out.report.json").read_bytes())
    assert compress("run", tmp_path / "kept", "--force").code == 0


@pytest.mark.parametrize("job", ["bench", "explain", "inspect"])
def test_what_writes_no_model_has_nothing_to_be_strict_about(compress, cnn, job):
    saved = cnn.parent / "job.toml"
    compress(job, cnn, "--save-recipe", saved)
    assert "--strict" in compress("run", saved, "--strict", code=2).err
