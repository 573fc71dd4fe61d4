"""Training by several processes over MPI."""

import json
import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from support import ROOT, read_report, run_command

DIGITS = ROOT / "models/digits"
SCRIBE = ROOT / "models/scribe"
TRAIN = ["--data", DIGITS / "train.npz", "--eval", DIGITS / "test.npz"]
PLAIN = ["distill", DIGITS / "digits.onnx", *TRAIN, "--from-nothing", "--batch", 32, "--accumulate", 2, "--ema", "0.99",
         "--seed", 7]  # fmt: skip
JOB = [*PLAIN, "--epochs", 3, "--augment", "crop=1"]
LONG = [*PLAIN, "--epochs", 60]
SAVED = [*LONG, "--save-every", "0.05s"]


def records(out):
    """The log of a job without what depends on the time."""
    lines = (out.with_suffix(".job") / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "samples_per_second"} for line in lines]


def rank(process, number):
    """The process of a rank that mpirun started."""
    while process.poll() is None:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environ = (folder / "environ").read_bytes().split(b"\0")
                name = (folder / "comm").read_text().strip()
            except OSError:
                continue
            job, own = f"COMPRESS_TEST_JOB={process.job}".encode(), f"OMPI_COMM_WORLD_RANK={number}".encode()
            if name.startswith("compress") and job in environ and own in environ:
                return int(folder.name)
        time.sleep(0.01)
    pytest.fail(f"it ended: {process.communicate()}")


def wait_for_checkpoint(process, out):
    folder = out.with_suffix(".job")
    while process.poll() is None and not list(folder.glob("checkpoint-*")):
        time.sleep(0.01)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process makes of four replicas, and its log."""
    out = tmp_path_factory.mktemp("alone") / "out.onnx"
    run_command(*JOB, "--replicas", 4, "--threads", 4, "-o", out)
    return out.read_bytes(), records(out)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_any_number_of_ranks_makes_the_same_bytes(ranks, tmp_path, alone, count):
    out = tmp_path / "out.onnx"
    said = ranks.run(count, *JOB, "--replicas", 4, "--threads", 4, "-o", out)
    assert out.read_bytes() == alone[0] and records(out) == alone[1]
    training = read_report(out.with_suffix(".report.json"))["training"]
    assert training["ranks"] == count and (training["spent"]["exchange"] > 0) == (count > 1)
    # One rank tells.
    assert said.count("bound by") == 1 and ("other ranks" in said) == (count > 1)


def test_gradients_that_wait_make_the_same_bytes(ranks, tmp_path, alone):
    out = tmp_path / "out.onnx"
    ranks.run(2, *JOB, "--replicas", 4, "--threads", 4, "-o", out, env={"COMPRESS_RANKS_WAIT": "1"})
    assert out.read_bytes() == alone[0]


def test_each_rank_is_a_replica_unless_told_otherwise(ranks, tmp_path):
    made = []
    for name, count, args in [("one", 1, ["--replicas", 2, "--threads", 2]), ("two", 2, ["--threads", 1])]:
        out = tmp_path / f"{name}.onnx"
        ranks.run(count, *JOB, *args, "-o", out)
        made.append([t.raw_data for t in onnx.load(out).graph.initializer])
    assert made[0] == made[1]


def test_mixed_samples_and_a_teacher(ranks, tmp_path):
    """Mixed samples come from other ranks' parts, and each rank asks the teacher about its own."""
    made = []
    for count in (1, 3):
        out = tmp_path / f"{count}.onnx"
        ranks.run(count, *PLAIN, "--epochs", 2, "--augment", "mixup=0.4", "--teacher", DIGITS / "digits.onnx", "--replicas", 3,
                  "--threads", 3, "-o", out)  # fmt: skip
        made.append(out.read_bytes())
    assert made[0] == made[1]


def test_tokens(ranks, tmp_path):
    """Samples of a text are filled up to the longest of the whole batch."""
    made = []
    for count in (1, 2):
        out = tmp_path / f"{count}.onnx"
        text = tmp_path / "text.txt"
        text.write_text("\n".join(f"line {i} " * (1 + i % 7) for i in range(40)))
        ranks.run(count, "distill", SCRIBE / "scribe.onnx", "--data", text, "--epochs", 1, "--batch", 8, "--replicas", 2,
                  "--threads", 2, "-o", out)  # fmt: skip
        made.append(out.read_bytes())
    assert made[0] == made[1]


def test_other_ranks_go_on_with_a_job(ranks, tmp_path, alone):
    """Four begin, one goes on, two end it: to the same bytes."""
    out = tmp_path / "out.onnx"
    job = [*JOB, "--replicas", 4, "--threads", 4, "--save-every", "0.01s", "-o", out]
    for count in (4, 1):
        process = ranks.start(count, *job, "--resume")
        before = len(records(out)) if out.with_suffix(".job").exists() else 0
        log = out.with_suffix(".job") / "metrics.jsonl"
        while process.poll() is None and not (log.exists() and log.read_bytes().count(b"\n") > before + 8):
            time.sleep(0.005)
        for number in range(count):
            os.kill(rank(process, number), signal.SIGINT)
        said = ranks.ended(process, 130)
        assert "--resume" in said
    ranks.run(2, *job, "--resume")
    assert out.read_bytes() == alone[0] and records(out) == alone[1]


def test_a_killed_rank_ends_the_job_with_a_whole_checkpoint(ranks, tmp_path):
    out = tmp_path / "out.onnx"
    process = ranks.start(3, *SAVED, "--replicas", 3, "--threads", 1, "-o", out)
    wait_for_checkpoint(process, out)
    os.kill(rank(process, 1), signal.SIGKILL)
    # What mpirun returns is that of the rank that it lost.
    said = ranks.ended(process, 128 + signal.SIGKILL)
    assert not out.exists() and "goes on from it" in said
    run_command(*SAVED, "--replicas", 3, "--threads", 3, "-o", out, "--resume")
    assert out.exists()


def test_a_rank_that_says_nothing_is_lost(ranks, tmp_path):
    out = tmp_path / "out.onnx"
    process = ranks.start(2, *SAVED, "--threads", 1, "-o", out, env={"COMPRESS_RANKS_PATIENCE": "3"})
    wait_for_checkpoint(process, out)
    stopped = rank(process, 1)
    os.kill(stopped, signal.SIGSTOP)
    said = ranks.ended(process, 8)
    assert re.search(r"rank 1 gave no sign for \d+ s", said) and "--resume" in said, said
    assert list(out.with_suffix(".job").glob("checkpoint-*")) and not out.exists()


def test_what_one_rank_can_not_do_all_leave(ranks, tmp_path):
    """Told once, with the exit code of the error."""
    said = ranks.run(2, *JOB, "-o", tmp_path / "out.onnx", "--teacher", tmp_path / "missing.onnx", code=6)
    assert said.count("error: file") == 1 and "missing.onnx" in said
    said = ranks.run(3, *JOB, "--replicas", 4, "-o", tmp_path / "out.onnx", code=2)
    assert said.count("error: usage") == 1 and "4 replicas for 3 ranks" in said
    said = ranks.run(2, "inspect", DIGITS / "digits.onnx", code=2)
    assert "only training jobs are divided" in said


def test_ranks_that_have_other_files_are_refused(ranks, tmp_path):
    """A wrapper gives the second rank another data set."""
    train = np.load(DIGITS / "train.npz")
    np.savez(tmp_path / "0.npz", x=train["x"], y=train["y"])
    np.savez(tmp_path / "1.npz", x=train["x"][::-1], y=train["y"][::-1])
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(
        f'#!/bin/sh\ncd "{tmp_path}" && mkdir -p "$OMPI_COMM_WORLD_RANK" && cd "$OMPI_COMM_WORLD_RANK" && '
        f'ln -sf "../$OMPI_COMM_WORLD_RANK.npz" data.npz && exec "{ranks.binary}" "$@"\n'
    )
    wrapper.chmod(0o755)
    other = type(ranks)(wrapper)
    said = other.run(
        2, "distill", DIGITS / "digits.onnx", "--data", "data.npz", "--epochs", 1, "-o", "out.onnx", code=2
    )
    assert "rank 1" in said and "same files and options" in said


def test_a_recipe_is_run_by_ranks(ranks, tmp_path):
    out, recipe = tmp_path / "out.onnx", tmp_path / "job.toml"
    run_command(*JOB, "--dry-run", "--save-recipe", recipe, "-o", out)
    ranks.run(2, "run", recipe, "--force")
    assert out.exists()
    checked = tmp_path / "check.toml"
    run_command("check", DIGITS / "digits.onnx", "--against", DIGITS / "digits.onnx", "--save-recipe", checked)
    assert "only training jobs" in ranks.run(2, "run", checked, code=2)


def test_a_broken_sample_of_one_rank_is_told_once(ranks, tmp_path):
    train = np.load(DIGITS / "train.npz")
    x = train["x"].copy()
    x[700] = np.nan
    np.savez(tmp_path / "nan.npz", x=x, y=train["y"])
    said = ranks.run(2, "distill", DIGITS / "digits.onnx", "--data", tmp_path / "nan.npz", "--eval", DIGITS / "test.npz",
                     "--epochs", 1, "--batch", 32, "--threads", 1, "-o", tmp_path / "out.onnx", code=7)  # fmt: skip
    assert said.count("error:") == 1 and "sample 700" in said and "lost" not in said, said


def test_any_rank_may_stop_the_job(ranks, tmp_path):
    """Also where a step takes so long that the others wait."""
    out = tmp_path / "out.onnx"
    process = ranks.start(2, *SAVED, "--threads", 1, "-o", out)
    wait_for_checkpoint(process, out)
    os.kill(rank(process, 1), signal.SIGINT)
    said = ranks.ended(process, 130)
    assert "--resume" in said and "lost" not in said, said
    assert not out.exists() and list(out.with_suffix(".job").glob("checkpoint-*"))


def test_ranks_that_wait_keep_what_was_learnt(ranks, tmp_path):
    """Rank 1 is asked to stop and stands still: rank 0 keeps the last step at once, and then the job goes on to its end."""
    out = tmp_path / "out.onnx"
    process = ranks.start(2, *LONG, "--save-every", "1h", "--threads", 1, "-o", out)
    log = out.with_suffix(".job") / "metrics.jsonl"
    while process.poll() is None and not log.exists():
        time.sleep(0.01)
    first, second = rank(process, 0), rank(process, 1)
    time.sleep(0.5)
    os.kill(second, signal.SIGSTOP)
    time.sleep(0.2)
    os.kill(first, signal.SIGTERM)
    wait_for_checkpoint(process, out)
    os.kill(second, signal.SIGCONT)
    said = ranks.ended(process, 130)
    assert said.count("goes on from it") == 1 and "lost" not in said, said


def test_the_number_of_replicas_is_in_the_recipe(ranks, tmp_path):
    """A report that ranks wrote is run by one process, to the same weights."""
    out, again = tmp_path / "out.onnx", tmp_path / "again.onnx"
    ranks.run(2, *JOB, "--threads", 2, "-o", out)
    report = out.with_suffix(".report.json")
    assert read_report(report)["recipe"]["run"]["replicas"] == 2
    made = out.read_bytes()
    run_command("run", report, "--force")
    assert out.read_bytes() == made
    assert "2 for 4 ranks" in ranks.run(4, *JOB, "--replicas", 2, "-o", again, code=2)
    assert "in another order" in ranks.run(2, *JOB, "--replicas", 6, "--threads", 6, "-o", again, code=2)
