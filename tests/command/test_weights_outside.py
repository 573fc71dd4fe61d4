"""Weights in files of their own are files of the job: no report, trace, recipe or result takes their place."""

import numpy as np
import onnx
import pytest
import small


@pytest.fixture
def outside(tmp_path):
    """A model whose weights are in weights.bin."""
    made = small.mlp(width=64)
    path = tmp_path / "model.onnx"
    onnx.save(made, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


@pytest.mark.parametrize(
    "args",
    [
        ["bench", "{model}", "--trace", "{weights}"],
        ["check", "{other}", "--against", "{model}", "--allow-synthetic", "--html", "{weights}"],
        ["{model}", "-o", "{out}", "--html", "{weights}"],
        ["{model}", "-o", "{out}", "--save-recipe", "{weights}"],
        ["{model}", "-o", "{weights}", "--force"],
    ],
)
def test_nothing_takes_their_place(compress, outside, tmp_path, args):
    weights = tmp_path / "weights.bin"
    before = weights.read_bytes()
    other = small.save(small.mlp(width=64), tmp_path, "other.onnx")
    names = {"model": outside, "weights": weights, "out": tmp_path / "out.onnx", "other": other}
    refused = compress(*[a.format(**names) for a in args], code=2)
    assert "replace" in refused.err
    assert weights.read_bytes() == before and not (tmp_path / "out.onnx").exists()


def test_a_page_does_not_take_the_place_of_recipe_or_report(compress, tmp_path):
    path = small.save(small.mlp(), tmp_path)
    recipe = tmp_path / "job.toml"
    compress(path, "--dry-run", "--save-recipe", recipe)
    before = recipe.read_text()
    compress("run", recipe, "--html", recipe, code=2)
    assert recipe.read_text() == before
    np.save(tmp_path / "x.npy", small.floats(1, 16, 8))
    check = ["check", path, "--against", path, "--eval", tmp_path / "x.npy", "--report", tmp_path / "reports"]
    compress(*check, "--html", tmp_path / "reports" / "report.json", code=2)
