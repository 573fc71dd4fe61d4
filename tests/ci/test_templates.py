"""The templates for CI: their shell steps run in an example repository, once passing, once failing."""

import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import yaml
from support import ROOT, run_command

DIGITS = ROOT / "models" / "digits"
WHEELS = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "wheels"
INSTALLED = Path(os.environ.get("COMPRESS_PYTHON", ROOT / "target" / "python")) / "bin"


@pytest.fixture
def wheel():
    """The wheel that tests/run builds."""
    wheels = list(WHEELS.glob("*.whl"))
    if not wheels:
        pytest.skip(f"there is no wheel in {WHEELS}: tests/run builds it")
    return wheels[0]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The digits network in INT8."""
    out = tmp_path_factory.mktemp("model") / "model.int8.onnx"
    run_command(DIGITS / "digits.onnx", "--int8", "--data", DIGITS / "train.npz", "-o", out, "--no-check")
    return out


@pytest.fixture
def repository(tmp_path, model):
    """A repository with a model, the model that it came from, and data."""
    folder = tmp_path / "repository"
    folder.mkdir()
    shutil.copy(DIGITS / "digits.onnx", folder / "model.onnx")
    shutil.copy(model, folder)
    shutil.copy(DIGITS / "test.npz", folder / "val.npz")
    train = np.load(DIGITS / "train.npz")
    np.savez(folder / "train.npz", **train)
    (folder / "recipe.toml").write_text(
        'job = "compress"\nmodel = "model.onnx"\noutput = "model.int8.onnx"\nint8 = true\ndata = "train.npz"\n'
    )
    return folder


def shell(script, folder, **env):
    """Runs a script as a runner does: bash that ends with the first command that fails."""
    path = {"PATH": f"{INSTALLED}:/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")}
    pip = {
        k: v
        for k, v in os.environ.items()
        if k.startswith(("PIP_", "SSL_", "REQUESTS_")) or k.lower().endswith("_proxy")
    }
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder, env={**pip, **path, **env}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def outcomes(report):
    """Which tests of a JUnit file failed."""
    cases = ET.parse(report / "junit.xml").getroot().iter("testcase")
    return {case.get("name"): case.find("failure") is not None for case in cases}


@pytest.mark.parametrize("args, code", [("--max-drop 1% --max-size 80kB", 0), ("--max-drop 1% --max-size 20kB", 9)])
def test_the_action(repository, wheel, tmp_path, args, code):
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    given = {
        "model": "model.int8.onnx",
        "against": "model.onnx",
        "data": "val.npz",
        "args": args,
        "package": str(wheel),
    }
    inputs = {name: given.get(name, spec.get("default", "")) for name, spec in action["inputs"].items()}
    values = {f"inputs.{name}": value for name, value in inputs.items()}
    values |= {"github.action_path": str(ROOT), "github.token": "", "github.event.pull_request.number": "1"}
    summary = tmp_path / "summary.md"
    runner = {"RUNNER_TEMP": str(tmp_path), "GITHUB_STEP_SUMMARY": str(summary)}
    ran = None
    steps = [step for step in action["runs"]["steps"] if "run" in step and "gh pr" not in step["run"]]
    assert [step["name"] for step in steps] == ["Install", "Check"]
    for step in steps:
        env = {k: re.sub(r"\$\{\{ (\S+) \}\}", lambda m: values[m[1]], v) for k, v in step["env"].items()}
        ran = shell(step["run"], repository, **runner, **env)
        if step["name"] == "Install":
            assert ran.returncode == 0, ran.stderr
    assert ran.returncode == code, ran.stdout + ran.stderr
    report = repository / "compress-report"
    assert {p.name for p in report.iterdir()} == {"report.json", "report.html", "report.md", "junit.xml", "metrics.txt"}
    assert ("**failed**" in summary.read_text()) == (code == 9)
    assert outcomes(report)["--max-size"] == (code == 9) and not outcomes(report)["--max-drop"]


@pytest.mark.parametrize("args, code", [("--max-drop 1%", 0), ("--max-size 20kB", 9)])
def test_the_job_of_gitlab(repository, wheel, args, code):
    job = yaml.safe_load((ROOT / "docs/ci/gitlab.yml").read_text())[".compress-check"]
    given = {
        "MODEL": "model.int8.onnx",
        "AGAINST": "model.onnx",
        "DATA": "val.npz",
        "ARGS": args,
        "PACKAGE": str(wheel),
    }
    ran = shell("\n".join(job["script"]), repository, CI_PROJECT_DIR=str(repository), **{**job["variables"], **given})
    assert ran.returncode == code, ran.stdout + ran.stderr
    report = repository / "compress-report"
    assert any(outcomes(report).values()) == (code == 9)
    assert (report / "metrics.txt").read_text().endswith("# EOF\n")


@pytest.mark.parametrize("gate, code", [("--max-drop 1%", 0), ("--min-sqnr 90", 9)])
def test_the_hook_of_pre_commit(repository, gate, code):
    if not (INSTALLED / "compress").exists():
        pytest.skip("the package is not installed: tests/run does that")
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert re.search(hook["files"], "model.int8.onnx")
    ran = shell(f"{hook['entry']} --against model.onnx --eval val.npz {gate} model.int8.onnx", repository)
    assert ran.returncode == code, ran.stdout + ran.stderr


def test_the_makefile(repository):
    if not (INSTALLED / "compress").exists():
        pytest.skip("the package is not installed: tests/run does that")
    shutil.copy(ROOT / "docs/ci/Makefile", repository)
    made = shell(
        "compress check model.int8.onnx --against model.onnx --eval val.npz --baseline baseline.toml --update-baseline",
        repository,
    )
    assert made.returncode == 0, made.stderr
    ran = shell("touch train.npz && make check", repository)
    # The speed of so small a model may differ by more than it should.
    assert "gate --baseline" in ran.stdout and "accuracy" in ran.stdout, ran.stdout + ran.stderr
    shutil.copy(repository / "model.onnx", repository / "model.int8.onnx")
    assert shell("touch model.int8.onnx && make check", repository).returncode != 0


def test_the_stages_of_dvc(repository):
    if not (INSTALLED / "compress").exists():
        pytest.skip("the package is not installed: tests/run does that")
    stages = yaml.safe_load((ROOT / "docs/ci/dvc.yaml").read_text())["stages"]
    for stage in stages.values():
        assert all((repository / dep).exists() for dep in stage["deps"])
        ran = shell(stage["cmd"], repository)
        assert ran.returncode == 0, ran.stderr
        assert all((repository / out).exists() for out in stage["outs"])
        assert all((repository / name).exists() for metrics in stage.get("metrics", []) for name in metrics)
