"""The report as a page for people."""

import json
import os
import re
import shlex
import shutil
import subprocess

import html5lib
import numpy as np
import onnx
import pytest
import small
from small import node
from support import ROOT

DIGITS = ROOT / "models" / "digits"
MODEL, TRAIN, TEST = DIGITS / "digits.onnx", DIGITS / "train.npz", DIGITS / "test.npz"
LOOK = ROOT / "tests" / "html" / "look.mjs"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"'\u202e`"
LARGEST = 500_000


class Page:
    """A page, parsed strictly."""

    def __init__(self, path):
        self.path = path
        self.raw = path.read_text()
        self.tree = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(self.raw)
        for element in self.tree.iter():
            # SVG is in a namespace of its own.
            element.tag = str(element.tag).rsplit("}")[-1]
        self.text = squeezed("".join(self.tree.find("body").itertext()))

    def all(self, tag):
        return list(self.tree.iter(tag))


def squeezed(text):
    return re.sub(r"\s+", " ", text)


def shown(text):
    """A sentence of a report, as the page has it: names between backticks are set as code."""
    return squeezed(text.replace("`", "") if text.count("`") % 2 == 0 else text)


@pytest.fixture(scope="module")
def jobs(compress, tmp_path_factory):
    """The page and the report of each job."""
    folder = tmp_path_factory.mktemp("pages")
    gates = ("--max-drop", "1%", "--min-sqnr", 90, "--max-size", "80kB")

    def done(name, *args, code=0):
        report = compress(*args, "--html", folder / f"{name}.html", "--json", code=code).json()
        return Page(folder / f"{name}.html"), report

    pages = {
        "compress": done(
            "compress",
            MODEL,
            "--int8",
            "--prune",
            "0.9",
            "--data",
            TRAIN,
            "--eval",
            TEST,
            *gates,
            "-o",
            folder / "a b.onnx",
            code=9,
        )
    }
    pages["check"] = done("check", "check", folder / "a b.onnx", "--against", MODEL, "--eval", TEST, *gates, code=9)
    sweep = ("--sweep", "0.5,0.9,0.98", "--epochs", 0, "--prune-by", "magnitude", "--data", TRAIN, "--max-drop", "5%")
    pages["sweep"] = done("sweep", MODEL, *sweep, "-o", folder / "swept.onnx")
    training = ("--data", TRAIN, "--eval", TEST, "--epochs", 2, "--from-nothing")
    pages["distill"] = done("distill", "distill", MODEL, *training, "-o", folder / "trained.onnx")
    return pages


JOBS = ["compress", "check", "sweep", "distill"]


@pytest.mark.parametrize("job", JOBS)
def test_a_page_needs_nothing_else(jobs, job):
    page, _ = jobs[job]
    assert 5_000 < len(page.raw.encode()) < LARGEST
    assert "http://" not in page.raw and "https://" not in page.raw and "url(" not in page.raw
    loads = [e for e in page.tree.iter() if e.get("src") or e.tag in ("link", "img", "iframe", "object")]
    assert not loads
    assert all(a.get("href").startswith("#") for a in page.all("a"))
    targets = {e.get("id") for e in page.tree.iter()}
    assert all(a.get("href")[1:] in targets for a in page.all("a"))
    assert "NaN" not in page.text and "inf" not in page.text.split()
    [policy] = [m.get("content") for m in page.all("meta") if m.get("http-equiv")]
    assert policy.startswith("default-src 'none'")


@pytest.mark.parametrize("job", JOBS)
def test_a_page_has_what_the_report_has(jobs, job):
    page, report = jobs[job]
    points = report.get("sweep", [report])
    for part in [report, *points]:
        for what in part.get("warnings", []) + part.get("undone", []):
            assert shown(what) in page.text, what
        for gate in part.get("gates", []):
            assert gate["name"] in page.text and gate["verdict"] in page.text
        assert part.get("output", report["input"])["sha256"] in page.text
    assert report["input"]["sha256"] in page.text and report["recipe"]["version"] in page.text
    assert (report["recipe"].get("data") or "") in page.text
    assert len(page.all("h1")) == 1 and len(page.all("h2")) >= 3


def test_every_plot_has_a_text_and_axes(jobs):
    for page, _ in jobs.values():
        for chart in (s for s in page.all("svg") if s.get("role") == "img"):
            assert len(chart.get("aria-label")) > 20
            titles = [t for t in chart.iter("text") if "title" in t.get("class", "")]
            assert len(titles) == 2 and all(t.text.strip() for t in titles)
    counts = {job: sum(s.get("role") == "img" for s in page.all("svg")) for job, (page, _) in jobs.items()}
    assert counts["compress"] >= 1 and counts["sweep"] == 2 and counts["distill"] == 2, counts


def test_verdicts_are_words(jobs):
    page, report = jobs["check"]
    failed = sum(not gate["passed"] for gate in report["gates"])
    assert failed >= 1 and f"{failed} of 3 gates failed." in page.text
    assert "2 of 3 models passed the gates." in jobs["sweep"][0].text


def test_layers_can_be_sorted_and_filtered(jobs):
    for job in ("compress", "check"):
        page, report = jobs[job]
        [table] = [t for t in page.all("table") if "sortable" in t.get("class", "")]
        heads = list(table.find("thead").iter("th"))
        assert all(h.find("button") is not None and h.get("scope") == "col" for h in heads)
        assert [h.get("aria-sort") for h in heads if h.get("aria-sort")] == ["ascending"]
        titles = ["".join(h.itertext()) for h in heads]
        assert titles[:2] == ["No.", "Layer"] and any(t.startswith("Weights, ") for t in titles)
        rows = list(table.find("tbody").iter("tr"))
        assert ["".join(r.find("th").itertext()) for r in rows] == [layer["node"] for layer in report["layers"]]
        [box] = page.all("input")
        assert box.get("id") in [label.get("for") for label in page.all("label")]


def test_passes_say_what_they_left_alone(jobs):
    page, report = jobs["compress"]
    for done in report["passes"]:
        assert done["name"] in page.text
        for left in done["skipped"]:
            assert shown(left["reason"]) in page.text


def test_the_course_of_a_training(jobs):
    page, report = jobs["distill"]
    course = report["training"]["course"]
    assert [e["epoch"] for e in course] == [0, 1, 2] and course[0]["loss"] is None
    assert (
        course[0]["score"] == report["training"]["before"]
        and max(e["score"] for e in course) == report["training"]["after"]
    )
    for epoch in course[1:]:
        assert f"{epoch['loss']:.4f}" in page.text and f"{100 * epoch['score']:.2f}" in page.text


def test_the_commands_of_a_sweep_make_its_models(compress, jobs, tmp_path):
    page, report = jobs["sweep"]
    commands = ["".join(pre.itertext()) for pre in page.all("pre")]
    assert len(commands) == len(report["sweep"]) + 1
    name, *args = shlex.split(commands[1])
    assert name == "compress" and "--prune" in args
    made = report["sweep"][1]["output"]
    args[args.index("--output") + 1] = str(tmp_path / "again.onnx")
    compress(*args)
    assert (tmp_path / "again.onnx").stat().st_size == made["bytes"]
    assert json.loads((tmp_path / "again.report.json").read_text())["output"]["sha256"] == made["sha256"]


def hostile(folder):
    """A network whose names try to be markup."""
    named = lambda name: HOSTILE + name
    nodes = [
        onnx.helper.make_node("MatMul", [named("x"), named("w0")], [named("a")], name=named("first")),
        onnx.helper.make_node("Relu", [named("a")], [named("b")]),
        onnx.helper.make_node("MatMul", [named("b"), named("w1")], [named("y")], name=named("second")),
    ]
    weights = {named(f"w{i}"): small.floats(i, 16, 16, scale=0.3) for i in (0, 1)}
    model = small.model(nodes, [(named("x"), ["n", 16])], [(named("y"), ["n", 16])], weights)
    return small.save(model, folder, "<b>&.onnx")


def test_names_are_no_markup(compress, tmp_path):
    page = tmp_path / "page.html"
    report = compress(hostile(tmp_path), "--int8", "--prune", "0.5", "--html", page, "--json", code=(0, 9)).json()
    assert any(HOSTILE in layer["node"] for layer in report["layers"])
    page = Page(page)
    assert len(page.all("script")) == 1 and not page.all("img") and not page.all("b")
    assert "alert(1)" in page.text and "\u202e" not in page.raw
    assert "".join(page.all("h1")[0].itertext()) == "<b>&.compressed.onnx"


def test_many_layers_stay_small(compress, tmp_path):
    """A chain of 2,000 layers with long names."""
    name = "/model/encoder/layers.{}/attention/self/query/projection/MatMul"
    nodes = [node("MatMul", f"v{i} w", f"v{i + 1}", name.format(i)) for i in range(2000)]
    model = small.model(nodes, [("v0", ["n", 8])], [("v2000", ["n", 8])], {"w": small.floats(0, 8, 8, scale=0.3)})
    path, page = small.save(model, tmp_path), tmp_path / "page.html"
    report = compress(path, "--no-check", "--html", page, "--json").json()
    assert len(report["layers"]) == 2000
    page = Page(page)
    assert len(page.raw.encode()) < LARGEST
    rows = len([r for r in page.all("tr") if r.find("th") is not None and "/model/encoder" in "".join(r.itertext())])
    assert rows == 2000 or f"{rows} layers of 2000 shown" in page.text


def test_clipped_activations_are_those_that_were_quantised(compress, tmp_path):
    """A few samples have large values: a percentile cuts them off."""
    x = small.floats(0, 256, 8)
    x[:, 5] *= np.linspace(0, 1, 256) ** 8 * 40
    np.savez(tmp_path / "x.npz", input=x)
    path, out, page = small.save(small.mlp(), tmp_path), tmp_path / "out.onnx", tmp_path / "page.html"
    args = ("--int8", "--data", tmp_path / "x.npz", "--calibration", "percentile-99.9", "--effort", "quick", "-o", out)
    report = compress(path, *args, "--html", page, "--json", code=(0, 9)).json()
    [clipping] = [p["clipping"] for p in report["passes"] if "clipping" in p]
    assert clipping["clipped"] >= 1 and clipping["values"] >= clipping["clipped"] == len(clipping["worst"])
    made = onnx.load(out).graph
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in made.initializer}
    ranges = {
        n.input[0]: (float(scale) * (0 - int(zero)), float(scale) * (255 - int(zero)))
        for n in made.node if n.op_type == "QuantizeLinear"
        for scale, zero in [(constants[n.input[1]], constants[n.input[2]])]
    }  # fmt: skip
    page = Page(page)
    for value in clipping["worst"]:
        low, high = value["range"]
        assert value["low"] < low or value["high"] > high
        bins = value["histogram"]
        assert 0 < value["share"] < 0.01 and len(bins["counts"]) <= 64
        assert bins["from"] <= value["low"] and value["high"] <= bins["from"] + bins["width"] * len(bins["counts"])
        beyond = [
            n for i, n in enumerate(bins["counts"]) if not low <= bins["from"] + (i + 0.5) * bins["width"] <= high
        ]
        assert sum(beyond) / sum(bins["counts"]) == pytest.approx(value["share"], abs=0.002)
        # The range of what a Relu makes does its work, and the Relu goes.
        assert (low, high) == pytest.approx(ranges[{"a": "h"}.get(value["name"], value["name"])], rel=1e-6)
        assert value["name"] in page.text and f"{100 * value['share']:.4f}" in page.text
    assert sum(s.get("role") == "img" for s in page.all("svg")) >= len(clipping["worst"])


def test_no_file_of_the_job_is_replaced(compress, tmp_path):
    before = MODEL.read_bytes()
    assert (
        "would replace a file of the job" in compress("check", MODEL, "--against", MODEL, "--html", MODEL, code=2).err
    )
    assert MODEL.read_bytes() == before
    sweep = (MODEL, "--sweep", "0.5,0.6", "-o", tmp_path / "out.onnx")
    assert "would replace a file of the job" in compress(*sweep, "--html", tmp_path / "out-0.5.onnx", code=2).err
    assert (
        "--html is for jobs that make a report"
        in compress(*sweep, "--html", tmp_path / "p.html", "--dry-run", code=2).err
    )
    assert list(tmp_path.iterdir()) == []


def test_readers_of_all_kinds_can_use_the_pages(jobs):
    """axe-core in headless Chromium: light and dark, on a phone and on a desktop."""
    chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
    if shutil.which("node") is None or not os.path.exists(chromium):
        pytest.skip("needs node and a Chromium ($CHROMIUM or /usr/bin/chromium)")
    needs = "require('playwright-core'); require('axe-core')"
    if subprocess.run(["node", "-e", needs], capture_output=True, cwd=LOOK.parent).returncode:
        pytest.skip("needs the npm packages playwright-core and axe-core (NODE_PATH says where)")
    for job, (page, _) in jobs.items():
        done = subprocess.run(["node", LOOK, page.path], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["requests"] == [] and found["errors"] == [] and len(found["looks"]) == 4
        for look in found["looks"]:
            assert look["violations"] == [] and look["overflow"] == 0, (job, look)
        if job in ("compress", "check"):
            up, down = found["layers"]["ascending"], found["layers"]["descending"]
            assert up["said"] == "ascending" and up["values"] == sorted(up["values"]) and len(up["values"]) > 1
            assert down["said"] == "descending" and down["values"] == up["values"][::-1]
            assert found["layers"]["others"] is None and found["layers"]["filtered"] == 0
