"""Training jobs that are stopped, killed, or started again."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from jobs import STUDENT, TEST, TRAIN, distill, scales
from support import binary, read_report, started

pytestmark = pytest.mark.slow


def job(out, *args):
    """A long job as a process."""
    return started(
        [binary(), "distill", STUDENT, "--data", TRAIN, "--eval", TEST, "-o", out, "--epochs", "6", "--batch", "16",
         "--from-nothing", "--augment", "crop=1", "--accumulate", "3", "--ema", "0.99", "--save-every", "0.05s", *args],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finished(out, *args):
    """Goes on with a job to its end; what it said."""
    process = job(out, "--resume", *args)
    _, said = process.communicate()
    assert process.returncode == 0, said
    return said


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """What the long job makes when nobody disturbs it, the seconds it takes, and its log."""
    out = tmp_path_factory.mktemp("unbroken") / "out.onnx"
    began = time.monotonic()
    process = job(out)
    assert process.wait() == 0, process.stderr.read()
    return out.read_bytes(), time.monotonic() - began, records(out)


def records(out):
    """The log of a job without what depends on the time."""
    lines = (out.with_suffix(".job") / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "samples_per_second"} for line in lines]


def killed(out, share, unbroken, *args):
    """Kills a long job when its log has some share of all records; its checkpoints, the oldest first."""
    process = reached(out, share, unbroken, *args)
    process.kill()
    process.wait()
    assert process.returncode == -signal.SIGKILL
    return sorted(out.with_suffix(".job").glob("checkpoint-*"))


def reached(out, share, unbroken, *args):
    """A job whose log has some share of all records."""
    process, log = job(out, *args), out.with_suffix(".job") / "metrics.jsonl"
    while process.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") < share * len(unbroken[2])):
        time.sleep(0.002)
    return process


def test_a_killed_job_goes_on_to_the_same_bytes(tmp_path, unbroken):
    rng = random.Random(0)
    for i in range(6):
        out = tmp_path / f"{i}.onnx"
        killed(out, rng.uniform(0, 0.95), unbroken)
        finished(out)
        assert out.read_bytes() == unbroken[0], f"kill {i}"
        # Several batches make a step, so a checkpoint between them must not let any be told twice.
        assert records(out) == unbroken[2], f"kill {i}"


def test_half_precision_goes_on_to_the_same_bytes(tmp_path):
    # Large losses overflow first, so that a scale that isn't kept would be found out.
    args = ["--precision", "f16", "--labels", "1000"]
    out = tmp_path / "unbroken.onnx"
    process = job(out, *args)
    assert process.wait() == 0, process.stderr.read()
    unbroken = (out.read_bytes(), None, records(out))
    assert scales(out)[-1] < 65536
    out = tmp_path / "out.onnx"
    killed(out, 0.3, unbroken, *args)
    finished(out, *args)
    assert out.read_bytes() == unbroken[0] and records(out) == unbroken[2]


def test_ctrl_c_saves_and_goes_on(tmp_path, unbroken):
    expected = unbroken[0]
    out = tmp_path / "out.onnx"
    process = reached(out, 0.3, unbroken)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130 and "--resume" in said, said
    assert not out.exists() and list(out.with_suffix(".job").glob("checkpoint-*"))
    finished(out)
    assert out.read_bytes() == expected


SPOILT = {
    "flipped": lambda p: p.write_bytes((data := p.read_bytes())[:-9] + bytes([data[-9] ^ 1]) + data[-8:]),
    "cut": lambda p: os.truncate(p, p.stat().st_size // 2),
    "empty": lambda p: os.truncate(p, 0),
    "deleted": Path.unlink,
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_spoilt_checkpoint_falls_back_to_the_one_before(tmp_path, unbroken, how):
    out = tmp_path / "out.onnx"
    saved = killed(out, 0.7, unbroken)
    assert len(saved) == 2
    SPOILT[how](saved[-1])
    assert saved[-1].name in finished(out) or how == "deleted"
    assert out.read_bytes() == unbroken[0] and records(out) == unbroken[2]


def test_no_whole_checkpoint_is_an_error(tmp_path, unbroken):
    out = tmp_path / "out.onnx"
    saved = killed(out, 0.7, unbroken)
    for path in saved:
        SPOILT["cut"](path)
    process = job(out, "--resume")
    _, said = process.communicate()
    assert process.returncode == 6 and all(p.name in said for p in saved) and "--force" in said, said
    assert not out.exists()


def test_another_recipe_does_not_resume(compress, tmp_path, unbroken):
    out = tmp_path / "out.onnx"
    killed(out, 0.5, unbroken)
    done, _ = distill(compress, out, "--epochs", 3, "--resume", code=2)
    assert "--checkpoint" in done.err and "--force" in done.err


@pytest.mark.parametrize("which", ["student", "teacher", "eval"])
def test_a_job_with_other_files_does_not_resume(compress, tmp_path, which):
    files = {"student": STUDENT, "teacher": STUDENT, "eval": TEST}
    for name, source in files.items():
        files[name] = tmp_path / f"{name}{source.suffix}"
        shutil.copy(source, files[name])
    args = ["distill", files["student"], "--teacher", files["teacher"], "--data", TRAIN, "--eval", files["eval"], "-o",
            tmp_path / "out.onnx", "--epochs", 60, "--save-every", "0.1s"]  # fmt: skip
    command = [str(a) for a in [binary(), *args]]
    process = started(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list((tmp_path / "out.job").glob("checkpoint-*")):
        time.sleep(0.01)
    process.kill()
    process.wait()
    if which == "eval":
        data = dict(np.load(TEST))
        np.savez(files["eval"], x=data["x"][1:], y=data["y"][1:])
    else:
        model = onnx.load(STUDENT)
        model.graph.initializer[0].raw_data = bytes(len(model.graph.initializer[0].raw_data))
        onnx.save(model, files[which])
    done = compress(*command[1:], "--resume", code=2)
    assert "recipe" in done.err


def test_a_full_disk_leaves_whole_files(tmp_path):
    out = tmp_path / "out.onnx"
    # Room for the data, which is unpacked to a temporary file, and not for a checkpoint.
    limit = 400_000
    np.savez(tmp_path / "few.npz", **{k: v[:64] for k, v in np.load(TRAIN).items()})
    process = subprocess.run(
        [binary(), "distill", STUDENT, "--data", tmp_path / "few.npz", "--eval", TEST, "-o", out, "--epochs", "2", "--quiet"],
        preexec_fn=lambda: (
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        ),
        capture_output=True, text=True,
    )  # fmt: skip
    assert process.returncode == 6, process.stderr
    assert not out.exists()
    assert not [p for p in Path(tmp_path).rglob("*") if p.name.startswith((".checkpoint-", ".compress-"))]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB that is full, and the file that fills it."""
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("mounting needs root")
    try:
        (place / "filler").write_bytes(bytes(os.statvfs(place).f_bavail * os.statvfs(place).f_bsize))
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_full_file_system_leaves_whole_files(compress, tmp_path, small_disk):
    done, _ = distill(compress, tmp_path / "out.onnx", "--checkpoint", small_disk / "job", code=6)
    assert "No space left" in done.err
    out = small_disk / "out.onnx"
    (small_disk / "filler").unlink()
    out.write_bytes(b"old")
    (small_disk / "filler").write_bytes(bytes(os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_bsize))
    args = ["--checkpoint", tmp_path / "job", "--epochs", 2]
    done, _ = distill(compress, out, *args, "--force", code=6)
    assert "No space left" in done.err and out.read_bytes() == b"old"
    assert sorted(p.name for p in small_disk.iterdir() if p.name != "job") == ["filler", "out.onnx"]
    (small_disk / "filler").unlink()
    _, report = distill(compress, out, *args, "--resume")
    assert report["training"]["spent"]["compute"] == 0, "only the output was missing"


def test_a_finished_job_is_not_done_again(compress, tmp_path):
    out = tmp_path / "out.onnx"
    begun, first = distill(compress, out, "--epochs", 1, "--resume")
    assert "no checkpoint to go on from" in begun.err
    made = out.read_bytes(), out.stat().st_mtime_ns
    again, report = distill(compress, out, "--epochs", 1, "--resume")
    assert "is done already" in again.out and "--force" in again.out
    assert report == first and (out.read_bytes(), out.stat().st_mtime_ns) == made
    again, _ = distill(compress, out, "--epochs", 1, "--resume", "--json")
    assert again.json() == first
    # What another recipe would make, or somebody else did, is not replaced.
    other, _ = distill(compress, out, "--epochs", 2, "--resume", code=6)
    assert "not what this job made" in other.err and "--force" in other.err
    out.write_bytes(b"changed")
    other, _ = distill(compress, out, "--epochs", 1, "--resume", code=6)
    assert out.read_bytes() == b"changed"
    # Without the model it is made again.
    out.unlink()
    distill(compress, out, "--epochs", 1, "--resume")
    assert out.read_bytes() == made[0]


def test_one_job_a_folder(compress, tmp_path):
    out = tmp_path / "out.onnx"
    process = job(out)
    while not (out.with_suffix(".job") / "metrics.jsonl").exists():
        time.sleep(0.002)
    process.send_signal(signal.SIGSTOP)
    try:
        for flag in ("--force", "--resume"):
            done, _ = distill(compress, out, flag, code=6)
            assert "another training job" in done.err
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("what", ["data", "student"])
def test_files_cut_short_while_they_are_used(tmp_path, what):
    files = {"student": tmp_path / "student.onnx", "data": tmp_path / "pictures.npy"}
    shutil.copy(STUDENT, files["student"])
    np.save(files["data"], np.load(TRAIN)["x"])
    out = tmp_path / "out.onnx"
    process = started(
        [binary(), "distill", files["student"], "--teacher", STUDENT, "--data", files["data"], "--eval", TEST,
         "-o", out, "--epochs", "4"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    log = out.with_suffix(".job") / "metrics.jsonl"
    while not log.exists():
        time.sleep(0.002)
    os.truncate(files[what], 1000)
    _, said = process.communicate()
    assert process.returncode == 6 and "error: file: " in said, said
    assert not out.exists()


def test_the_memory_chooses_the_batch_once(compress, tmp_path):
    out = tmp_path / "out.onnx"
    command = ["distill", STUDENT, "--data", TRAIN, "--eval", TEST, "-o", out, "--batch", "auto", "--epochs", "10",
               "--save-every", "0.1s"]  # fmt: skip
    process = started([binary(), *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(out.with_suffix(".job").glob("checkpoint-*")):
        time.sleep(0.002)
    process.kill()
    process.wait()
    compress(*command, "--resume")
    assert read_report(out.with_suffix(".report.json"))["training"]["batch"] == 64
