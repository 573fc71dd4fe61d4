"""Profiles beside the ceilings of the machine, and traces."""

import json

import pytest
import small
from support import ROOT

DIGITS = ROOT / "models" / "digits" / "digits.onnx"


def test_a_profile_adds_up(compress):
    found = compress("bench", DIGITS, "--runs", "3", "--profile", "--json").json()
    profile = found["profile"]
    ceilings = profile["ceilings"]
    assert ceilings["gflops"] > 0 and ceilings["int8_gops"] > 0
    assert [c["bytes"] for c in ceilings["copies"]] == sorted(c["bytes"] for c in ceilings["copies"])
    assert abs(sum(p["ms"] for p in profile["parts"]) - profile["ms"]) < 1e-9
    assert abs(sum(p["share"] for p in profile["parts"]) - 1) < 1e-9
    # What of a second is multiplied is what the model multiplies.
    macs = compress("inspect", DIGITS, "--json").json()["file"]["macs"]
    multiplied = sum(p["gflops"] * p["ms"] * 1e6 for p in profile["parts"] if p["gflops"])
    assert abs(multiplied - 2 * macs) < 1e-6 * macs
    for part in profile["parts"]:
        copies = [c["gbs"] for c in ceilings["copies"]]
        shares = (
            [part["gflops"] / ceilings["gflops"]] if part["bound"] == "compute" else [part["gbs"] / c for c in copies]
        )
        assert any(abs(share - part["of_ceiling"]) < 1e-9 for share in shares)
    assert {p["bound"] for p in profile["parts"]} <= {"compute", "memory"}
    sizes = [b["batch"] for b in profile["batches"]]
    assert sizes == [1, 2, 4, 8, 16, 32, 64] and profile["best_batch"] in sizes
    assert profile["activation_bytes"] > 0 and profile["process_peak_bytes"] > profile["weight_bytes"] > 0
    shown = compress("bench", DIGITS, "--runs", "3", "--profile").out
    assert "ceilings of this machine" in shown and "most samples a second" in shown


def test_on_burn_and_with_a_fixed_batch(compress, tmp_path):
    path = small.save(small.cnn(batch=2), tmp_path)
    profile = compress("bench", path, "--runs", "2", "--profile", "--engine", "burn", "--json").json()["profile"]
    assert [b["batch"] for b in profile["batches"]] == [2]
    assert any(p["kernels"] == ["burn"] and p["gflops"] for p in profile["parts"])


def test_a_trace_has_the_steps_of_each_run(compress, tmp_path):
    file = tmp_path / "trace.json"
    compress("bench", DIGITS, "--runs", "2", "--batch", "64", "--threads", "2", "--trace", file)
    events = json.loads(file.read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert all(e["dur"] >= 0 and e["ts"] >= 0 and e["pid"] == 1 for e in spans)
    runs = [e for e in spans if e["name"] == "run"]
    assert len(runs) == 5
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names[0] == "steps" and all(e["tid"] in names for e in spans)
    steps = [e for e in spans if e["tid"] == 0 and e["name"] != "run"]
    for step in steps:
        assert any(r["ts"] - 1 <= step["ts"] and step["ts"] + step["dur"] <= r["ts"] + r["dur"] + 1 for r in runs)
    assert any("/relu1/Relu" in step["args"]["node"] for step in steps)


@pytest.mark.parametrize("place", ["", "missing/trace.json"])
def test_a_trace_that_can_not_be_written_costs_no_time(compress, tmp_path, place):
    assert compress("bench", DIGITS, "--trace", tmp_path / place, code=6).err


def test_a_trace_does_not_replace_what_the_job_reads(compress, tmp_path):
    path = small.save(small.cnn(), tmp_path)
    before = path.read_bytes()
    compress("bench", path, "--trace", path, code=2)
    compress("bench", path, "--trace", tmp_path / "x.json", "--save-recipe", tmp_path / "x.json", code=2)
    assert path.read_bytes() == before


def test_threads_that_take_pieces_of_a_batch_have_lines_of_their_own(compress, tmp_path):
    file = tmp_path / "trace.json"
    path = small.save(small.cnn(size=64), tmp_path)
    compress(
        "bench", path, "--shape", "input=64x3x64x64", "--batch", "64", "--runs", "2", "--threads", "2", "--trace", file
    )
    events = json.loads(file.read_text())["traceEvents"]
    steps = {e["tid"] for e in events if e["ph"] == "X" and e["name"] not in ("run", "work")}
    assert len(steps) > 1, "the second thread"
