"""Jobs of which several machines do a part each (`--shard`), and `compress merge`."""

import json
import shutil

import pytest
from jobs import STUDENT, TEST, TRAIN
from support import read_report

FRACTIONS = "0.9,0.5,0.98,0.7"
SWEEP = [STUDENT, "--sweep", FRACTIONS, "--epochs", "0", "--prune-by", "magnitude", "--int8", "--effort", "quick"]
SWEEP += ["--data", TRAIN, "--eval", TEST, "-o", "out.onnx"]
SEARCH = ["search", STUDENT, "--data", TRAIN, "--eval", TEST, "--epochs", "0", "-o", "out.onnx"]


def part(i, of):
    return f"out.{i}-of-{of}.report.json"


@pytest.fixture(scope="module")
def whole(compress, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    compress(*SWEEP, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def parts(compress, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    done = [compress(*SWEEP, "--shard", f"{i}/3", "--json", cwd=folder).json() for i in (3, 1, 2)]
    assert [[p["fraction"] for p in report["sweep"]] for report in done] == [[0.9], [0.5, 0.98], [0.7]]
    assert all(report["plot"] is None and report["file"] == part(i, 3) for i, report in zip((3, 1, 2), done))
    return folder


def timeless(report):
    """A report without what differs from run to run."""
    if isinstance(report, dict):
        moving = ("speed", "seconds", "gates", "ms")
        return {name: timeless(value) for name, value in report.items() if name not in moving}
    if isinstance(report, list):
        return [
            timeless(one) for one in report if "the processor's clock fell" not in str(one) or isinstance(one, dict)
        ]
    return report


def test_parts_of_a_sweep_make_what_the_whole_makes(compress, whole, parts):
    merged = compress("merge", *(part(i, 3) for i in (1, 2, 3)), "--json", "--html", "page.html", cwd=parts)
    report = merged.json()
    assert read_report(parts / "out.report.json") == report
    assert timeless(report) == timeless(read_report(whole / "out.report.json"))
    assert [p["fraction"] for p in report["sweep"]] == [0.5, 0.7, 0.9, 0.98]
    for point in report["sweep"]:
        name = point["output"]["path"]
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name
        assert timeless(read_report(parts / point["report"])) == timeless(read_report(whole / point["report"]))
    assert (parts / "out.sweep.svg").read_bytes() == (whole / "out.sweep.svg").read_bytes()
    assert "0.98" in (parts / "page.html").read_text()
    again = compress("merge", *(part(i, 3) for i in (1, 2, 3)), code=6, cwd=parts)
    assert "out.report.json: exists already" in again.err and "--force" in again.err
    table = compress("merge", *(part(i, 3) for i in (1, 2, 3)), "--force", cwd=parts).out
    assert [line.split()[0] for line in table.splitlines()[2:6]] == ["0.5", "0.7", "0.9", "0.98"]


def test_a_merge_tells_which_part_is_wrong(compress, parts, tmp_path):
    def merge(*names, code=2):
        return compress("merge", *names, "--force", code=code, cwd=tmp_path).err

    for file in parts.iterdir():
        shutil.copy(file, tmp_path)
    one, two, three = (part(i, 3) for i in (1, 2, 3))
    assert "part 2/3 is missing: given are 1/3, 3/3" in merge(one, three)
    assert "part 1/3 is given twice" in merge(one, two, three, one)
    assert "is not the report of a part" in merge("out-0.5.report.json")
    text = (tmp_path / two).read_text()
    changed = json.loads(text)
    changed["recipe"]["run"]["prune-ends"] = True
    (tmp_path / two).write_text(json.dumps(changed))
    assert f"{two}: is not a part of the same job as {one}: they differ in --prune-ends" in merge(one, two, three)
    changed = json.loads(text)
    for point in changed["sweep"]:
        point["accuracy"]["before"] -= 0.1
    (tmp_path / two).write_text(json.dumps(changed))
    assert "they differ in the data that was measured on" in merge(one, two, three)
    # The time that measuring may take may end on any sample.
    for point in changed["sweep"]:
        point["accuracy"]["before"] += 0.09
        point["accuracy"]["samples"] -= 1
    (tmp_path / two).write_text(json.dumps(changed))
    merge(one, two, three, code=0)
    assert "would replace a file of the job" in merge(one, two, three, "--html", "out-0.5.onnx")
    changed = json.loads(text)
    changed["recipe"]["data"] = "another"
    (tmp_path / two).write_text(json.dumps(changed))
    assert "they differ in the data" in merge(one, two, three)
    (tmp_path / two).write_text(text[: len(text) // 2])
    assert f"{two}: is not the report of a part" in merge(one, two, three)
    changed = json.loads(text)
    del changed["sweep"][0]["output"]
    (tmp_path / two).write_text(json.dumps(changed))
    assert "is not a whole report of this version" in merge(one, two, three, code=6)
    (tmp_path / two).write_text(text)
    (tmp_path / "out-0.7.onnx").write_bytes(b"another")
    assert "out-0.7.onnx: is not the model" in merge(one, two, three, code=6)
    (tmp_path / "out-0.7.onnx").unlink()
    assert "out-0.7.onnx: cannot be read" in merge(one, two, three, code=6)
    assert "no such file" in merge("nothing.json", code=6).lower()


def test_gates_are_those_of_the_whole(compress, tmp_path):
    gated = [*SWEEP[:2], "0.5,0.7,0.99", *SWEEP[3:], "--max-drop", "1%"]
    for i in (1, 2, 3):
        compress(*gated, "--shard", f"{i}/3", cwd=tmp_path)
    assert not read_report(tmp_path / part(3, 3))["sweep"][0]["passed"]
    compress("merge", *(part(i, 3) for i in (1, 2, 3)), cwd=tmp_path)


def test_a_recipe_is_divided(compress, parts, tmp_path):
    compress(*SWEEP, "--shard", "1/3", "--save-recipe", "part.toml", cwd=tmp_path)
    recipe = (tmp_path / "part.toml").read_text()
    assert 'shard = "1/3"' in recipe
    (tmp_path / "whole.toml").write_text(recipe.replace('shard = "1/3"\n', ""))
    compress("run", "whole.toml", "--shard", "2/3", cwd=tmp_path)
    for name in ("out-0.5.onnx", "out-0.98.onnx", "out-0.7.onnx"):
        assert (tmp_path / name).read_bytes() == (parts / name).read_bytes()
    (tmp_path / "check.toml").write_text(f'job = "inspect"\nmodel = "{STUDENT}"\n')
    assert "--shard is for" in compress("run", "check.toml", "--shard", "2/3", code=2, cwd=tmp_path).err


def test_parts_that_make_no_sense_are_refused(compress, tmp_path):
    def refused(*args):
        return compress(*args, "-o", tmp_path / "out.onnx", code=2).err

    assert "not a part such as 2/4" in refused(*SWEEP[:-2], "--shard", "4/3")
    assert "not a part such as 2/4" in refused(*SWEEP[:-2], "--shard", "0/3")
    assert "there are 4 fractions" in refused(*SWEEP[:-2], "--shard", "5/5")
    assert "--sweep" in refused(STUDENT, "--shard", "1/2")


@pytest.mark.slow
def test_parts_of_a_search_make_one_front(compress, tmp_path):
    for i in (1, 2):
        report = compress(*SEARCH, "--trials", "4", "--shard", f"{i}/2", "--json", cwd=tmp_path).json()
        assert report["output"] is None and report["samples"]["measured"] == 0 and report["gates"] == []
        assert all(p["measured"] is None for p in report["points"])
        assert read_report(tmp_path / f"out.{i}-of-2.search/search.json") == report
    assert not (tmp_path / "out.onnx").exists()
    lines = [
        [
            json.loads(line)["way"]
            for line in (tmp_path / f"out.{i}-of-2.search/tried.jsonl").read_text().splitlines()[1:]
        ]
        for i in (1, 2)
    ]
    assert lines[0] != lines[1] and lines[0][:2] == lines[1][:2]
    before = (tmp_path / "out.1-of-2.search/tried.jsonl").read_bytes()
    args = ["merge", "out.1-of-2.search", "out.2-of-2.search/search.json"]
    # A part that is not whole makes no folder.
    second = tmp_path / "out.2-of-2.search/tried.jsonl"
    text = second.read_text()
    second.write_text(text[:-40])
    assert "has 3 of the 4 ways that its report tells of" in compress(*args, code=6, cwd=tmp_path).err
    assert not (tmp_path / "out.search").exists()
    second.write_text(text)
    # Nor do parts with other limits: one of them would be passed over.
    told = tmp_path / "out.2-of-2.search/search.json"
    whole = told.read_text()
    changed = json.loads(whole)
    changed["recipe"]["run"]["max-drop"] = "5%"
    told.write_text(json.dumps(changed))
    assert "--max-drop" in compress(*args, code=2, cwd=tmp_path).err
    told.write_text(whole)
    report = compress(*args, "--json", cwd=tmp_path).json()
    different = {json.dumps(way, sort_keys=True) for way in lines[0] + lines[1]}
    assert report["tried"] == len(different) and report["samples"]["measured"] > 0
    front = [p for p in report["points"] if p["front"]]
    assert all(p["measured"] for p in front)
    best = max(
        r["reached"][-1]["hypervolume"]
        for r in (read_report(tmp_path / f"out.{i}-of-2.search/search.json") for i in (1, 2))
    )
    assert report["reached"][-1]["hypervolume"] >= 0.9 * best
    taken = tmp_path / f"out.search/points/{report['picked']:03}.onnx"
    assert taken.read_bytes() == (tmp_path / "out.onnx").read_bytes()
    # What ways began with alike was done once, and makes the same bytes by the recipe alone.
    pruned = [p for p in front if "fewer" in p["way"] or "zeros" in p["way"]][:2]
    for point in pruned:
        place = tmp_path / f"out.search/points/{point['number']:03}"
        compress("run", place.with_suffix(".toml"), "--force", cwd=tmp_path)
        assert place.with_suffix(".again.onnx").read_bytes() == place.with_suffix(".onnx").read_bytes(), point["way"]
    assert (tmp_path / "out.1-of-2.search/tried.jsonl").read_bytes() == before
    again = compress(*args, code=6, cwd=tmp_path).err
    assert "exists already" in again and "--force" in again
    # The whole goes on where its parts ended.
    more = compress(*SEARCH, "--trials", str(report["tried"] + 1), "--resume", "--json", cwd=tmp_path).json()
    assert more["tried"] == report["tried"] + 1


def test_parts_judge_layers(compress, tmp_path):
    args = ["sensitivity", STUDENT, "--data", TRAIN, "-o", "plot.svg"]
    counts = []
    for i in (1, 2, 3):
        report = compress(*args, "--shard", f"{i}/3", "--json", cwd=tmp_path).json()
        assert report["file"] == f"plot.{i}-of-3.json" and report["plot"] is None
        assert not report.get("layers") and report["judged"] == len(
            json.loads((tmp_path / report["file"]).read_text())["judged"]
        )
        counts.append(report["judged"])
    assert max(counts) - min(counts) <= 1
    merge = ["merge", *(f"plot.{i}-of-3.json" for i in (1, 2, 3))]
    merged = compress(*merge, "--json", cwd=tmp_path).json()
    plot = (tmp_path / "plot.svg").read_bytes()
    assert compress(*args, "--force", "--json", cwd=tmp_path).json() == merged
    assert (tmp_path / "plot.svg").read_bytes() == plot
    # What the parts found is what the figures are made of: a changed one shows.
    part_file = tmp_path / "plot.2-of-3.json"
    part = json.loads(part_file.read_text())
    part["judged"] = {graph: {**likeness, "typical": 0.5} for graph, likeness in part["judged"].items()}
    part_file.write_text(json.dumps(part))
    assert compress(*merge, "--force", "--json", cwd=tmp_path).json()["layers"] != merged["layers"]
    other = {**part, "recipe": {**part["recipe"], "data": "another"}}
    part_file.write_text(json.dumps(other))
    assert "was judged on other data" in compress(*merge, "--force", code=2, cwd=tmp_path).err
    assert "too few layers" in compress(*args, "--shard", "98/99", code=2, cwd=tmp_path).err
    assert "--html is for jobs" in compress(*merge, "--html", "page.html", code=2, cwd=tmp_path).err
    part_file.write_text(json.dumps({"recipe": part["recipe"]}))
    assert "plot.2-of-3.json: is not a whole part" in compress(*merge, "--force", code=6, cwd=tmp_path).err
