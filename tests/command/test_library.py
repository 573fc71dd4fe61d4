"""The library, from a program that uses it."""

import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support import ROOT, TIMEOUT

pytestmark = pytest.mark.slow

DIGITS = ROOT / "models/digits"


@pytest.fixture(scope="module")
def program():
    """A program that has the library as its dependency. With all packages it has the build of the other tests."""
    if shutil.which("cargo") is None:
        pytest.skip("there is no cargo")
    build = ["cargo", "build", "--locked", "--quiet", "--workspace", "--example", "library"]
    subprocess.run(build, cwd=ROOT, check=True, timeout=3 * TIMEOUT)
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug/examples/library"


def run(program, folder, steps):
    out = folder / "out.onnx"
    done = subprocess.run(
        [program, DIGITS / "digits.onnx", DIGITS / "train.npz", out, str(steps)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.strip(), sorted(p.name for p in folder.iterdir())


def test_a_program_of_fifteen_lines_compresses(program, tmp_path):
    said, files = run(program, tmp_path, 99)
    result, steps = said.split(" ", 1)
    # How often a step is taken depends on the search.
    steps = [step for step, _ in itertools.groupby(json.loads(steps))]
    assert result == "Ok(287)"
    assert steps == ["calibrate", "round weights", "calibrate", "values alone", "ranges of values", "evaluate", "time"]
    assert files == ["out.onnx", "out.report.json"]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_program_that_stops_half_way_leaves_nothing(program, tmp_path, steps):
    said, files = run(program, tmp_path, steps)
    assert said.startswith("Err(Interrupted)") and files == []
