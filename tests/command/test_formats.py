"""Reports in the forms that others read."""

import xml.etree.ElementTree as ET

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from support import ROOT, read_report, run_command

DIGITS = ROOT / "models" / "digits"
AGAINST = ("--against", DIGITS / "digits.onnx", "--eval", DIGITS / "test.npz")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The digits network in INT8, with a name that all forms have to escape."""
    out = tmp_path_factory.mktemp("formats") / 'a "b" <c> | d & e_f.onnx'
    run_command(DIGITS / "digits.onnx", "--int8", "--data", DIGITS / "train.npz", "-o", out, "--no-check")
    return out


def forms(folder):
    return {name: folder / name for name in ("markdown", "junit", "openmetrics")}


def options(files):
    return [part for name, path in files.items() for part in (f"--{name}", path)]


def test_a_check_in_every_form(compress, model, tmp_path):
    files = forms(tmp_path)
    gates = ("--max-drop", "1%", "--min-sqnr", 90, "--max-size", "80kB")
    report = compress("check", model, *AGAINST, *gates, *options(files), "--json", code=9).json()
    text = files["markdown"].read_text()
    assert text.startswith("### `") and ": **failed**" in text.splitlines()[0]
    assert (
        "| `--min-sqnr` | 90 dB |" in text
        and "| **failed** |" in text
        and "| `--max-drop` | 1.00% | 0.00% | passed |" in text
    )
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.replace("\\|", "").count("|") == 5 for line in rows), "each row has four cells"
    root = ET.parse(files["junit"]).getroot()
    cases = {c.get("name"): c for c in root.iter("testcase")}
    assert set(cases) == {"--max-drop", "--min-sqnr", "--max-size", "fit for use"}
    assert [name for name, c in cases.items() if c.find("failure") is not None] == ["--min-sqnr"]
    assert root.get("failures") == "1" and str(model) in next(root.iter("testsuite")).get("name")
    [sample] = {f.name: f for f in text_string_to_metric_families(files["openmetrics"].read_text())}[
        "compress_size_bytes"
    ].samples
    assert sample.value == model.stat().st_size and sample.labels == {"model": str(model)}
    found = {f.name: f.samples[0].value for f in text_string_to_metric_families(files["openmetrics"].read_text())}
    assert found["compress_gates_failed"] == 1 and found["compress_accuracy"] == report["accuracy"]["after"]
    assert found["compress_speedup_ratio"] == report["speed"]["speedup"]


def test_a_compression_in_every_form(compress, tmp_path):
    files, out = forms(tmp_path), tmp_path / "out.onnx"
    args = (DIGITS / "digits.onnx", "--int8", "--data", DIGITS / "train.npz", "-o", out)
    compress(*args, *options(files))
    assert all(path.stat().st_size > 100 for path in files.values())
    assert "**passed**" not in files["markdown"].read_text(), "nothing was asked for"
    assert read_report(out.with_suffix(".report.json"))["gates"] == []


def test_no_file_of_the_job_is_replaced(compress, model, tmp_path):
    for path in (model, DIGITS / "test.npz", DIGITS / "digits.onnx"):
        before = path.read_bytes()
        assert "would replace a file of the job" in compress("check", model, *AGAINST, "--junit", path, code=2).err
        assert path.read_bytes() == before
    assert (
        "folder is not there" in compress("check", model, *AGAINST, "--markdown", tmp_path / "no/where.md", code=6).err
    )


def test_other_jobs_have_no_such_report(compress, model, tmp_path):
    args = (DIGITS / "digits.onnx", "--prune", 0.5, "-o", tmp_path / "out.onnx", "--markdown", tmp_path / "r.md")
    assert "jobs that make one report" in compress(*args, "--dry-run", code=2).err
    assert "jobs that make one report" in compress(DIGITS / "digits.onnx", "--sweep", "0.5,0.6", *args[3:], code=2).err
    assert not (tmp_path / "r.md").exists()
