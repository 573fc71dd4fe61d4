"""Sweeps: a model, a report and a point of the plot for each fraction."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
from jobs import GRADUAL, INNER, TRAIN
from jobs import STUDENT as MODEL
from support import listing, read_report


@pytest.fixture(scope="module")
def swept(compress, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    args = ["--sweep", "0.9,0.5,0.98", "--epochs", "0", "--prune-by", "magnitude", "--data", TRAIN]
    result = compress(MODEL, *args, "--max-drop", "5%", "--json", "-o", folder / "out.onnx")
    return folder, args, result.json()


def test_a_sweep_is_the_command_for_each_fraction(compress, swept, tmp_path):
    folder, args, report = swept
    assert {p.name for p in folder.iterdir()} == {
        "out.report.json", "out.sweep.svg",
        *(f"out-{f}.{e}" for f in ("0.5", "0.9", "0.98") for e in ("onnx", "report.json")),
    }  # fmt: skip
    assert read_report(folder / "out.report.json") == report
    assert report["schema"] == 1 and [p["fraction"] for p in report["sweep"]] == [0.5, 0.9, 0.98]
    assert "--sweep 0.5,0.9,0.98" in report["recipe"]["flags"]
    for point in report["sweep"]:
        own = read_report(folder / f"out-{point['fraction']}.report.json")
        for key in ("output", "accuracy", "speed", "gates"):
            assert point[key] == own[key]
        assert own["accuracy"]["before"] == report["sweep"][0]["accuracy"]["before"]
        assert point["sparsity"] == pytest.approx(point["fraction"] * INNER / 58_474, abs=0.01)
        assert point["output"]["bytes"] == (folder / f"out-{point['fraction']}.onnx").stat().st_size
    alone = tmp_path / "alone.onnx"
    compress(MODEL, "--prune", "0.9", *args[2:], "-q", "-o", alone)
    assert alone.read_bytes() == (folder / "out-0.9.onnx").read_bytes()


def test_a_sweep_is_plotted(swept):
    folder, _, report = swept
    svg = ElementTree.fromstring((folder / "out.sweep.svg").read_text())
    name = "{http://www.w3.org/2000/svg}"
    texts = {t.text.strip() for t in svg.iter(f"{name}text")}
    assert texts > {"top1, %", "original", "weights asked to be zero, %", "60"}
    dots = [(float(c.get("cx")), float(c.get("cy"))) for c in svg.iter(f"{name}circle")]
    assert len(dots) == 3 and dots == sorted(dots)
    accuracy = [p["accuracy"]["after"] for p in report["sweep"]]
    # Down is more in SVG.
    assert sorted(range(3), key=lambda i: -dots[i][1]) == sorted(range(3), key=lambda i: accuracy[i])
    assert "href" not in (folder / "out.sweep.svg").read_text()


def test_gates_of_a_sweep(compress, swept, tmp_path):
    _, args, report = swept
    # 98% falls through, the others don't: that is a sweep that found something.
    assert [p["passed"] for p in report["sweep"]] == [True, True, False]
    result = compress(MODEL, *args, "--max-size", "1kB", "-o", tmp_path / "out.onnx", code=9)
    assert "none of the 3 models passed" in result.err and result.out.count("FAILED") == 3
    assert re.search(r"^  0\.98 ", result.out, re.M) and "out.sweep.svg" in result.out
    assert len(list(tmp_path.iterdir())) == 8
    before = listing(tmp_path)
    assert "--force" in compress(MODEL, *args, "-o", tmp_path / "out.onnx", code=6).err
    assert listing(tmp_path) == before


def test_a_sweep_tells_what_holds_for_each(compress, cnn):
    args = [cnn, "--sweep", "0.2,0.5", *GRADUAL]
    plot = cnn.parent / "model.compressed.sweep.svg"
    result = compress(*args)
    heads = [i for i, line in enumerate(result.out.splitlines()) if re.fullmatch(r"  --prune 0\.[25]:", line)]
    assert len(heads) == 2 and result.out.count("zeroed") == 2
    assert "measured on 64 samples, made-up inputs" in result.out and plot.exists()
    report = read_report(cnn.parent / "model.compressed.report.json")
    for point in report["sweep"]:
        own = read_report(cnn.parent / f"model.compressed-{point['fraction']}.report.json")
        assert sorted(report["warnings"] + point["warnings"]) == sorted(own["warnings"])
        assert any("made-up inputs" in w for w in point["warnings"])
    # Nothing is measured, so that the plot would be that of the sweep before.
    result = compress(*args, "--no-check", "--force")
    assert "no plot was made" in result.out and "sweep.svg" not in result.out and not plot.exists()
    result = compress(*args, "--epochs", "1", "--data", cnn.parent / "xy.npz", "--force")
    assert result.out.count("    recover: - -> ") == 2 and "made-up" not in result.out and plot.exists()
