"""`compress search`: ways to compress a model, of which no other is better."""

import json
import signal
import subprocess
import time

import numpy as np
import pytest
import small
from jobs import DIGITS, STUDENT, TEST, TRAIN, accuracy
from support import binary, read_report, started

SEARCH = ["search", STUDENT, "--data", TRAIN, "--eval", TEST, "--time", "300s"]


def tried(folder):
    """What was known at the beginning, and each way that was tried."""
    begun, *lines = map(json.loads, (folder / "tried.jsonl").read_text().splitlines())
    return begun, [line for line in lines if "way" in line]


@pytest.fixture(scope="module")
def found(compress, tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    args = ["--trials", "12", "--epochs", "1", "-o", folder / "out.onnx", "--html", folder / "page.html", "--json"]
    return folder, compress(*SEARCH, *args).json()


def test_a_search_finds_what_no_other_beats(found):
    folder, report = found
    assert report["tried"] == 12 and len(tried(folder / "out.search")[1]) == 12
    best = [p for p in report["points"] if p["front"]]
    assert len(best) >= 2

    def beats(a, b):
        """Whether `a` is no worse in anything, and better in something, than `b`; as much noise is as much lost."""
        noise = [-(p["sqnr_db"] if p["sqnr_db"] is not None else 999) for p in (a, b)]
        a, b = a["chosen_by"], b["chosen_by"]
        no_worse = all(a[k] <= b[k] for k in ("lost", "time", "size")) and (
            a["lost"] < b["lost"] or noise[0] <= noise[1]
        )
        # Steps of 2% are not told apart.
        return no_worse and (a["time"] < 0.96 * b["time"] or a["size"] < b["size"] or a["lost"] < b["lost"])

    # What counts is what samples tell together: a way may be on the front that lost a little more by itself.
    beaten = [b["number"] for b in best if sum(beats(a, b) for a in best) > max(1, len(best) // 3)]
    assert not beaten
    course = [r["hypervolume"] for r in report["reached"]]
    assert course[:-1] == sorted(course[:-1]) and course[-1] >= report["plain"] > 0
    assert report["reached"][-1]["tried"] == 12
    assert {p["way"] for p in report["points"] if p["plain"]} >= {"floats", "INT8", "INT8, one rule"}
    assert read_report(folder / "out.search/search.json") == report
    assert report["samples"]["measured"] == len(np.load(TEST)["y"])


def test_the_result_is_one_of_them_within_the_limits(found):
    folder, report = found
    taken = next(p for p in report["points"] if p["number"] == report["picked"])
    assert taken["front"] and taken["measured"]["lost"] <= 0.01
    assert (folder / "out.onnx").read_bytes() == (folder / f"out.search/points/{taken['number']:03}.onnx").read_bytes()
    # By ONNX Runtime too.
    assert accuracy(folder / "out.onnx") == pytest.approx(taken["after"], abs=0.01)
    own = read_report(folder / "out.report.json")
    assert own["output"] == report["output"] and own["gates"] == report["gates"]
    page = (folder / "page.html").read_text()
    assert "What can be had together" in page and "flags alone" in page


def test_each_has_its_recipe(compress, found, tmp_path):
    folder, report = found
    best = [p for p in report["points"] if p["front"]]
    for point in best:
        place = folder / "out.search/points" / f"{point['number']:03}"
        # From any folder.
        compress("run", place.with_suffix(".toml"), "--force", cwd=tmp_path)
        assert place.with_suffix(".again.onnx").read_bytes() == place.with_suffix(".onnx").read_bytes(), point["way"]
    kept = {f.stem for f in (folder / "out.search/points").glob("*.onnx")}
    assert kept >= {f"{p['number']:03}" for p in best}


@pytest.mark.slow
def test_ways_that_share_what_was_found_make_the_same_bytes_alone(compress, tmp_path):
    out = tmp_path / "out.onnx"
    # What is timed decides where channels pay: all go by the same times.
    env = {"COMPRESS_CACHE": str(tmp_path / "cache")}
    compress(*SEARCH, "--strategy", "random", "--epochs", "0", "--trials", "10", "-o", out, "-q", env=env)
    begun, ways = tried(tmp_path / "out.search")
    chose = max(w["outcome"]["samples"] for w in ways if w["outcome"])
    kept = [f for f in (tmp_path / "out.search/points").glob("*.toml")]
    for recipe in kept:
        compress("run", recipe, "--force", "-q", env=env)
        made = recipe.with_suffix(".again.onnx").read_bytes()
        assert made == recipe.with_suffix(".onnx").read_bytes(), recipe.read_text()
    # What stays behind is measured on fewer samples; the best are measured on all.
    samples = {w["number"]: w["outcome"]["samples"] for w in ways if w["outcome"]}
    assert set(samples.values()) == {chose, -(-chose // 8)}
    assert all(samples[int(recipe.stem)] == chose for recipe in kept)


def test_it_is_said_where_the_original_was_trained_on_what_chooses(compress, tmp_path):
    test = dict(np.load(TEST))
    half = np.arange(len(test["y"])) % 2
    np.savez(tmp_path / "harder.npz", x=test["x"], y=(test["y"] + half) % 10)
    args = ["--epochs", "0", "--trials", "2", "-o", tmp_path / "out.onnx", "--json", "--force"]
    says = [compress(*SEARCH[:4], "--eval", data, *args).json()["warnings"] for data in (tmp_path / "harder.npz", TEST)]
    assert [any("probably trained on the former" in w for w in warnings) for warnings in says] == [True, False]


def test_nothing_sees_the_evaluation_set_until_the_end(compress, tmp_path):
    test = dict(np.load(TEST))
    np.savez(tmp_path / "other.npz", x=test["x"][::-1] * 0.5, y=(test["y"] + 1) % 10)
    runs = []
    for name, data in (("a", TEST), ("b", tmp_path / "other.npz")):
        out = tmp_path / f"{name}.onnx"
        args = ["--strategy", "random", "--epochs", "0", "--trials", "4", "--eval", data, "-o", out]
        # With other labels, the result is as wrong as the original.
        # What is timed decides where channels pay: both go by the same times.
        env = {"COMPRESS_CACHE": str(tmp_path / "cache")}
        compress("search", STUDENT, "--data", TRAIN, "--time", "300s", *args, "-q", env=env)
        _, ways = tried(tmp_path / f"{name}.search")
        runs.append(
            [(w["way"], w["outcome"] and (w["outcome"]["sha256"], w["outcome"]["objectives"]["lost"])) for w in ways]
        )
    # Which files are data is part of a recipe, but not of what is made.
    assert runs[0] == runs[1]


def test_a_search_goes_on_where_it_was_stopped(compress, tmp_path):
    out = tmp_path / "out.onnx"
    args = [*SEARCH, "--epochs", "0", "-o", out]
    job = started([binary(), *args], stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "out.search/tried.jsonl"
    for _ in range(600):
        if journal.exists() and len(journal.read_text().splitlines()) >= 4:
            break
        time.sleep(0.1)
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=60)
    assert job.returncode == 130 and not out.exists()
    spent = json.loads(journal.read_text().splitlines()[-1])
    assert spent.keys() == {"spent"}, "the seconds of a try that was stopped count too"
    begun, before = tried(tmp_path / "out.search")
    # The best so far are there, and nothing that is half written.
    front = {f.name for f in (tmp_path / "out.search/points").iterdir()}
    assert front and all(name.endswith((".onnx", ".toml")) for name in front)
    assert "there is a search already" in compress(*args, code=6).err
    assert "of another search" in compress(*args, "--seed", "5", "--resume", code=2).err
    # A machine that stopped in the middle of a line leaves a part of it.
    journal.write_text(journal.read_text() + '{"number":')
    compress(*args, "--trials", str(len(before) + 2), "--resume", "-q")
    again, after = tried(tmp_path / "out.search")
    assert again == begun and after[: len(before)] == before and len(after) == len(before) + 2
    assert [way["number"] for way in after] == list(range(1, len(after) + 1)) and out.exists()


def test_limits_and_wishes_pick(compress, tmp_path):
    out = tmp_path / "out.onnx"
    args = [*SEARCH, "--epochs", "0", "--trials", "3", "-o", out, "--json"]
    smallest = compress(*args, "--wish", "smallest", "--max-drop", "5%").json()
    sizes = {p["number"]: p["bytes"] for p in smallest["points"] if p["front"]}
    assert sizes[smallest["picked"]] == min(sizes.values())
    # Limits and wishes may be others when it goes on: what was tried stays.
    nearest = compress(*args, "--wish", "nearest", "--resume").json()
    assert nearest["tried"] == 3 and nearest["output"]["bytes"] > smallest["output"]["bytes"]
    missed = compress(*args, "--max-size", "1kB", "--resume", code=9)
    assert json.loads(missed.out)["picked"] == smallest["picked"] and "--max-size" in missed.err


def test_a_folder_that_is_damaged_or_in_use_is_told(compress, tmp_path):
    out = tmp_path / "out.onnx"
    args = [*SEARCH, "--epochs", "0", "-o", out, "-q"]
    compress(*args, "--trials", "4")
    journal = tmp_path / "out.search/tried.jsonl"
    whole = journal.read_text()
    lines = whole.splitlines(keepends=True)
    # A model that is not what the line says, and one without a line, are of no use.
    points = tmp_path / "out.search/points"
    kept = sorted(points.glob("*.onnx"))
    kept[-1].write_bytes(b"something else")
    (points / "077.onnx").write_bytes(b"left over")
    (points / "002.again.onnx").write_bytes(b"made by a recipe")
    compress(*args, "--trials", "4", "--resume")
    assert journal.read_text() == whole and not (points / "077.onnx").exists()
    assert kept[-1].read_bytes() != b"something else", "it was made again"
    broken = {
        "line 1: ": [lines[0][:50] + "\n", *lines[1:]],
        "line 3: ": [*lines[:2], "{}\n", *lines[3:]],
        "line 4: it is numbered 2": [*lines[:3], lines[2], *lines[3:]],
        "line 5: it took no time": [*lines[:4], lines[4].replace('"at":', '"at":-5,"x":', 1)],
        "line 2: it names a layer": [lines[0], lines[1].replace('"float":[]', '"float":[99]', 1)],
    }
    for says, text in broken.items():
        journal.write_text("".join(text))
        assert says in compress(*args, "--resume", code=6).err
        assert journal.read_text() == "".join(text), "nothing is thrown away in silence"
    journal.write_bytes(b"\xff\xfe")
    assert "not text" in compress(*args, "--resume", code=6).err
    compress(*args, "--trials", "2", "--force")
    assert len(tried(tmp_path / "out.search")[1]) == 2
    assert (points / "002.again.onnx").exists(), "the search removes what it made"

    journal.write_text("of an earlier search")
    job = started([binary(), *map(str, args), "--force"], stderr=subprocess.PIPE, text=True)
    # It begins anew once it has the folder for itself.
    while journal.exists() and journal.read_text() == "of an earlier search":
        assert job.poll() is None
        time.sleep(0.02)
    assert "another search works in this folder" in compress(*args, "--force", code=6).err
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=60)
    assert job.returncode == 130


def test_what_is_there_already_is_told_before_any_work(compress, tmp_path):
    (tmp_path / "out.report.json").write_text("{}")
    result = compress(*SEARCH, "-o", tmp_path / "out.onnx", code=6)
    assert "out.report.json" in result.err and not (tmp_path / "out.search").exists()


def test_ways_that_do_nothing_come_to_nothing(compress, tmp_path):
    args = [*SEARCH, "--epochs", "0", "--trials", "5", "--exclude", ".*", "-o", tmp_path / "out.onnx"]
    report = compress(*args, "--json").json()
    assert [p["way"] for p in report["points"]] == ["floats"] and report["failed"] == report["tried"] - 1
    _, ways = tried(tmp_path / "out.search")
    assert all("found nothing to do" in way["failed"] for way in ways[1:])


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        ([STUDENT], 2, "a search needs --data"),
        ([STUDENT, "--data", TRAIN, "-o", STUDENT], 2, "replace the input"),
        ([STUDENT, "--data", TRAIN, "-o", "-"], 2, "writes a folder"),
        ([DIGITS / "nothing.onnx", "--data", TRAIN], 6, "nothing.onnx"),
        ([STUDENT, "--data", TRAIN, "--metric", "none"], 2, "none"),
    ],
)
def test_what_can_not_be_searched_is_told(compress, tmp_path, args, code, says):
    if "-o" not in args:
        args = [*args, "-o", tmp_path / "out.onnx"]
    assert says in compress("search", *args, code=code).err


def test_floats_are_tried_however_short_the_time(compress, tmp_path):
    report = compress(*SEARCH[:-1], "1s", "--max-drop", "0", "-o", tmp_path / "out.onnx", "--json").json()
    (taken,) = [p for p in report["points"] if p["number"] == report["picked"]]
    assert taken["way"] == "floats" and taken["measured"]["lost"] == 0
    assert any("floats" in w and ("in this time" in w or "is the original" in w) for w in report["warnings"])


def test_a_quantised_model_may_still_be_searched(compress, tmp_path):
    int8 = tmp_path / "int8.onnx"
    compress(STUDENT, "--int8", "--effort", "quick", "--data", TRAIN, "-o", int8, "-q")
    args = ["--data", TRAIN, "--eval", TEST, "--epochs", "0", "--trials", "3", "-o", tmp_path / "out.onnx"]
    result = compress("search", int8, *args)
    assert "no layer is quantised: " in result.err and "quantised already" in result.err
    assert "INT8" not in result.out, "nothing that can't be is tried"


def test_a_few_samples_are_too_few(compress, tmp_path):
    data = np.load(TRAIN)
    np.savez(tmp_path / "few.npz", x=data["x"][:2], y=data["y"][:2])
    args = ["--data", tmp_path / "few.npz", "--eval", TEST, "-o", tmp_path / "out.onnx"]
    assert "too few to search on" in compress("search", STUDENT, *args, code=7).err
    # With ten, three choose: that a loss of a point can't be told from them is said.
    np.savez(tmp_path / "few.npz", x=data["x"][:10], y=data["y"][:10])
    report = compress("search", STUDENT, *args, "--trials", "2", "--epochs", "0", "--json").json()
    assert report["samples"]["chose"] == 3 and any("too few to tell" in w for w in report["warnings"])


@pytest.mark.slow
def test_a_search_by_chance_draws_others_when_it_goes_on(compress, tmp_path):
    """It looks at 100 at a time: after so many, those that it drew first are all tried."""
    args = [*SEARCH, "--strategy", "random", "--epochs", "0", "-o", tmp_path / "out.onnx", "-q"]
    compress(*args, "--trials", "110")
    compress(*args, "--trials", "112", "--resume")
    _, ways = tried(tmp_path / "out.search")
    assert len(ways) == 112 and len({json.dumps(way["way"]) for way in ways}) == 112


def test_a_recipe_of_a_search_may_go_on(compress, tmp_path):
    out, recipe = tmp_path / "out.onnx", tmp_path / "search.toml"
    compress(*SEARCH, "--epochs", "0", "--trials", "2", "-o", out, "--save-recipe", recipe, "-q")
    first = (tmp_path / "out.search/tried.jsonl").read_text()
    assert "exists already" in compress("run", recipe, code=6).err
    for flags, trials in ((["--resume"], 3), (["--resume", "--force"], 4)):
        recipe.write_text(recipe.read_text().replace(f"trials = {trials - 1}", f"trials = {trials}"))
        compress("run", recipe, *flags, "-q")
        second = (tmp_path / "out.search/tried.jsonl").read_text()
        assert second.startswith(first) and len(second.splitlines()) == trials + 1
        first = second


def test_one_trial_is_one(compress, tmp_path):
    report = compress(*SEARCH, "--trials", "1", "-o", tmp_path / "out.onnx", "--json").json()
    assert report["tried"] == 1 and not any("give more time" in w for w in report["warnings"])


def test_answers_that_choose_nothing_are_no_metric(compress, tmp_path):
    """Without labels, and with one class for every sample, what counts is the error of the outputs."""
    train, test = np.load(TRAIN)["x"], np.load(TEST)["x"]
    blank = np.zeros_like(train[:1])
    np.savez(tmp_path / "alike.npz", x=np.repeat(blank, 96, 0) + 1e-4 * train[:96])
    np.savez(tmp_path / "test.npz", x=np.repeat(blank, 48, 0) + 1e-4 * test[:48])
    args = ["--data", tmp_path / "alike.npz", "--eval", tmp_path / "test.npz", "--epochs", "0", "--trials", "2"]
    report = compress("search", STUDENT, *args, "-o", tmp_path / "out.onnx", "--json", code=(0, 9)).json()
    assert not report["of_share"] and report["metric"] == "sqnr"
    (gate,) = report["gates"]
    assert gate["verdict"] == "passed" and "an error of" in json.dumps(gate)


def test_samples_that_choose_fill_a_fixed_batch(compress, tmp_path, rng):
    model = small.save(small.cnn(batch=8), tmp_path)
    np.savez(tmp_path / "x.npz", input=rng.standard_normal((40, 3, 12, 12)).astype(np.float32))
    np.savez(tmp_path / "y.npz", input=rng.standard_normal((16, 3, 12, 12)).astype(np.float32))
    args = ["--data", tmp_path / "x.npz", "--eval", tmp_path / "y.npz", "--epochs", "0", "--trials", "2"]
    report = compress("search", model, *args, "-o", tmp_path / "out.onnx", "--json", code=(0, 9)).json()
    assert report["samples"] == {"chose": 8, "measured": 16}
    np.savez(tmp_path / "x.npz", input=rng.standard_normal((20, 3, 12, 12)).astype(np.float32))
    err = compress("search", model, *args, "-o", tmp_path / "few.onnx", code=7).err
    assert "a third of them chooses, and the model takes 8 at once" in err


def test_it_is_said_why_nothing_but_floats_is_taken(compress, tmp_path):
    args = ["--epochs", "0", "--trials", "2", "--max-drop", "0", "-o", tmp_path / "out.onnx", "--json"]
    said = [w for w in compress(*SEARCH, *args).json()["warnings"] if "is the original in floats: INT8" in w]
    assert len(said) == 1 and "--max-drop allows 0.00 points" in said[0]
