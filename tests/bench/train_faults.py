"""Training jobs that are killed, whose checkpoints are spoilt, whose disk is full: all must end with the same bytes.

    .venv/bin/python tests/bench/train_faults.py [--kills N] [--epochs N] [--seed N]

A job on models/digits runs undisturbed first. Then the same job is killed (SIGKILL) at N random moments, once with
labels and augmentation and once with a teacher whose answers are kept on disk; several times in one run; and at each
change that it makes to the output's folder, from the first temporary file to the report. Each time --resume has to end
with the bytes of the undisturbed job, a log without gaps or repetitions, and no temporary file but what a kill between
the two names of a new output leaves. Then checkpoints are spoilt; then the checkpoints or the output lie on a tmpfs
without room, which needs root and is left out otherwise.

Prints a line for each part and what went wrong; exits with 1 if anything did. The command is COMPRESS_BIN, or
target/release/compress.
"""

import argparse
import ctypes
import itertools
import json
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "models/digits"
STUDENT = DIGITS / "digits.onnx"
BINARY = os.environ.get("COMPRESS_BIN", str(ROOT / "target/release/compress"))
KINDS = {
    "labels": ["--augment", "crop=1,noise=0.05,mixup=0.2"],
    "teacher": ["--teacher", STUDENT],
}
FILE_ERROR = 6
IN_CHANGED = 0x2 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200


class Faults:
    """What went wrong."""

    def __init__(self):
        self.count = 0

    def check(self, good, what):
        """Tells of what is not as it should be."""
        if not good:
            self.count += 1
            print(f"  WRONG: {what}", flush=True)
        return good


class Job:
    """A training job whose files are in `folder`, its checkpoints perhaps elsewhere."""

    def __init__(self, folder, kind, epochs, checkpoints=None):
        self.folder, self.out = folder, folder / "out.onnx"
        self.checkpoints = checkpoints or folder / "out.job"
        self.command = [
            BINARY, "distill", STUDENT, "--data", DIGITS / "train.npz", "--eval", DIGITS / "test.npz",
            "-o", self.out, "--checkpoint", self.checkpoints, "--epochs", str(epochs), "--batch", "16",
            "--from-nothing", "--accumulate", "3", "--ema", "0.99", "--save-every", "0.2s", *KINDS[kind],
        ]  # fmt: skip

    def start(self, *args):
        """The job as a process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return subprocess.Popen([*self.command, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *args):
        """Runs it to its end: the exit code and what it said."""
        process = self.start(*args)
        _, said = process.communicate()
        return process.returncode, said

    def killed(self, records, seconds, *args):
        """Kills it some seconds after its log has so many records; whether it was still at work."""
        process = self.start(*args)
        while process.poll() is None and self.logged() < records:
            time.sleep(0.002)
        time.sleep(seconds)
        process.kill()
        process.communicate()
        return process.returncode == -signal.SIGKILL

    def logged(self):
        """How many records its log has."""
        log = self.checkpoints / "metrics.jsonl"
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def saved(self):
        """The files of its checkpoints, the oldest first."""
        return sorted(self.checkpoints.glob("checkpoint-*.safetensors"))

    def temporaries(self):
        """What should be gone at its end."""
        folders = [self.folder, self.checkpoints]
        return [p for f in folders for p in f.iterdir() if p.name.startswith((".compress-", ".checkpoint-"))]

    def records(self):
        """Its log without what depends on the time."""
        lines = (self.checkpoints / "metrics.jsonl").read_text().splitlines()
        return [{k: v for k, v in json.loads(line).items() if k != "samples_per_second"} for line in lines]


def finishes(faults, job, expected, what):
    """Goes on with a job, which has to end as an undisturbed one does."""
    code, said = job.run("--resume")
    if not faults.check(code == 0, f"{what}: --resume exits with {code}: {said}"):
        return
    faults.check(job.out.read_bytes() == expected[0], f"{what}: other bytes")
    faults.check(not job.temporaries(), f"{what}: left {job.temporaries()}")
    if job.records() != expected[1]:
        got, wanted = ([json.dumps(r) for r in records] for records in (job.records(), expected[1]))
        repeated = len(got) - len(set(got))
        faults.check(False, f"{what}: the log has {len(got)} records for {len(wanted)}, {repeated} of them repeated")


def random_kills(faults, folder, kind, epochs, expected, kills, rng):
    """One kill a job, then many kills in one job."""
    records = len(expected[1])
    at_work = with_checkpoints = 0
    for i in range(kills):
        job = Job(folder / f"{kind}-{i}", kind, epochs)
        moment = rng.randrange(records), rng.uniform(0, 0.05)
        at_work += job.killed(*moment)
        with_checkpoints += bool(job.saved())
        finishes(faults, job, expected, f"{kind}, killed {moment[1]:.3f} s after record {moment[0]}")
    print(f"{kind}: {kills} kills, {at_work} before the job's end, {with_checkpoints} with a checkpoint", flush=True)

    job, times = Job(folder / f"{kind}-often", kind, epochs), 0
    while times < 20 and not job.out.exists():
        more = rng.randrange(1, max(2, records // 4))
        times += job.killed(min(records - 1, job.logged() + more), rng.uniform(0, 0.05), "--resume")
    finishes(faults, job, expected, f"{kind}, killed {times} times")
    print(f"{kind}: {times} kills in one job", flush=True)


class Watch:
    """Waits for changes in folders (inotify)."""

    def __init__(self, *folders):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self.libc.inotify_init1(os.O_CLOEXEC)
        for folder in folders:
            assert self.libc.inotify_add_watch(self.fd, os.fsencode(folder), IN_CHANGED) >= 0

    def names(self, process):
        """The names that changed, as the changes come, until the process ends."""
        while process.poll() is None:
            if not select.select([self.fd], [], [], 0.05)[0]:
                continue
            events = os.read(self.fd, 4096)
            while events:
                length = struct.unpack_from("iIII", events)[3]
                yield events[16 : 16 + length].rstrip(b"\0").decode()
                events = events[16 + length :]

    def close(self):
        """Ends it."""
        os.close(self.fd)


def kills_at_the_end(faults, folder, expected, epochs):
    """Kills a job at each change to its folders after its last step: checkpoints, output, report."""
    base = Job(folder / "end", "labels", epochs)
    process = base.start()
    while process.poll() is None and not list(base.checkpoints.glob(f"checkpoint-*{last_step(expected)}.safetensors")):
        time.sleep(0.0005)
    process.kill()
    process.communicate()
    if not faults.check(process.returncode and base.saved(), "the last step was missed"):
        return
    changes, left = [], []
    while True:
        job = Job(folder / f"end-{len(changes)}", "labels", epochs)
        shutil.copytree(base.folder, job.folder)
        job.out.write_bytes(b"old")
        watch = Watch(job.folder, job.checkpoints)
        process = job.start("--resume")
        names = watch.names(process)
        change = next(itertools.islice(names, len(changes), None), None)
        process.kill()
        process.communicate()
        watch.close()
        if change is None:
            break
        changes.append(change)
        what = f"killed at change {len(changes)}, of {change}"
        faults.check(job.out.read_bytes() in (b"old", expected[0]), f"{what}: the output is neither old nor new")
        # An output that replaces another has a name of its own for a moment.
        for path in job.folder.glob(".compress-*"):
            left.append(path)
            path.unlink()
        finishes(faults, job, expected, what)
    print(f"{len(changes)} kills at changes of files after the last step, {len(left)} of which left a temporary file: "
          f"{', '.join(dict.fromkeys(changes))}", flush=True)  # fmt: skip


def last_step(expected):
    """The number of the last step."""
    return expected[1][-1]["step"]


SPOILT = {
    "a bit flipped": lambda p: p.write_bytes(flipped(p.read_bytes())),
    "a bit of the header flipped": lambda p: p.write_bytes(flipped(p.read_bytes(), 100)),
    "cut in half": lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2]),
    "a byte too long": lambda p: p.write_bytes(p.read_bytes() + b"\0"),
    "empty": lambda p: p.write_bytes(b""),
    "zeros": lambda p: p.write_bytes(bytes(p.stat().st_size)),
    "deleted": lambda p: p.unlink(),
}


def flipped(data, at=None):
    """With one bit changed."""
    data = bytearray(data)
    data[len(data) // 2 if at is None else at] ^= 4
    return bytes(data)


def spoilt_checkpoints(faults, folder, epochs, expected):
    """The newest spoilt, then all."""
    base = Job(folder / "spoilt", "labels", epochs)
    base.killed(len(expected[1]) * 2 // 3, 0.0)
    if not faults.check(len(base.saved()) == 2, f"{len(base.saved())} checkpoints instead of two"):
        return
    for what, spoil in SPOILT.items():
        for all_of_them in (False, True):
            job = Job(folder / f"spoilt-{what}-{all_of_them}".replace(" ", "-"), "labels", epochs)
            shutil.copytree(base.folder, job.folder)
            saved = job.saved()
            for path in saved if all_of_them else saved[-1:]:
                spoil(path)
            if not all_of_them:
                finishes(faults, job, expected, f"newest checkpoint {what}")
            elif what != "deleted":
                code, said = job.run("--resume")
                clear = code == FILE_ERROR and said.startswith("error: ") and all(p.name in said for p in saved)
                faults.check(clear, f"both checkpoints {what}: exit {code}: {said}")
                faults.check(not job.out.exists(), f"both checkpoints {what}: an output")
    print(f"{len(SPOILT)} ways to spoil checkpoints", flush=True)


class Small:
    """A tmpfs of some bytes."""

    def __init__(self, at, size):
        at.mkdir()
        self.at = at
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", at], check=True, capture_output=True)

    def fill(self, free):
        """Leaves but some bytes free."""
        room = os.statvfs(self.at)
        (self.at / "filler").write_bytes(bytes(max(0, room.f_bavail * room.f_bsize - free)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", self.at], check=True)


def whole(folder):
    """The files that matter in a folder."""
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name.startswith("checkpoint-") or p.suffix == ".onnx"}


def full_disks(faults, folder, epochs, expected, seconds):
    """No room for a checkpoint, for the log, for the output."""
    size = 0
    for free in (0, 8 << 10, 64 << 10, 150 << 10):
        with Small(folder / f"full-{free}", 8 << 20) as disk:
            job = Job(folder / f"full-{free}-out", "labels", epochs, disk.at / "job")
            job.killed(len(expected[1]) // 2, 0.0)
            size = job.saved()[-1].stat().st_size
            disk.fill(free)
            before = whole(disk.at / "job")
            code, said = job.run("--resume")
            faults.check(code == FILE_ERROR and "No space left" in said, f"{free} bytes free: exit {code}: {said}")
            # A checkpoint that still found room is a good one.
            kept = all(whole(disk.at / "job").get(n) == b for n, b in before.items()) or len(job.saved()) == 2
            faults.check(kept, f"{free} bytes free: old checkpoints changed")
            faults.check(not job.temporaries() and not job.out.exists(), f"{free} bytes free: left {job.temporaries()}")
            (disk.at / "filler").unlink()
            finishes(faults, job, expected, f"resumed after a full disk with {free} bytes")
    print(f"4 full disks for checkpoints (of {size} bytes)", flush=True)
    for free in (0, 8 << 10, 64 << 10):
        with Small(folder / f"full-out-{free}", 1 << 20) as disk:
            job = Job(disk.at, "labels", epochs, folder / f"full-out-{free}-job")
            job.out.write_bytes(b"old")
            disk.fill(free)
            code, said = job.run("--force")
            faults.check(code == FILE_ERROR and "No space left" in said, f"output, {free} bytes: exit {code}: {said}")
            faults.check(job.out.read_bytes() == b"old", f"output, {free} bytes: the old one changed")
            faults.check(not job.temporaries(), f"output, {free} bytes: left {job.temporaries()}")
            (disk.at / "filler").unlink()
            began = time.monotonic()
            finishes(faults, job, expected, f"resumed after a full disk for the output with {free} bytes")
            faults.check(time.monotonic() - began < seconds / 2, "the training was done again for the output")
    print("3 full disks for the output", flush=True)


def main():
    """All of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="parts: kills, end, spoilt, full")
    args = parser.parse_args()
    parts = (args.only or "kills,end,spoilt,full").split(",")
    faults, rng = Faults(), random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="train-faults-") as folder:
        folder = Path(folder)
        expected = {}
        for kind in KINDS:
            job, began = Job(folder / kind, kind, args.epochs), time.monotonic()
            code, said = job.run()
            seconds = time.monotonic() - began
            if code:
                sys.exit(said)
            expected[kind] = (job.out.read_bytes(), job.records()), seconds
            print(f"{kind}: undisturbed {seconds:.1f} s, {last_step(expected[kind][0])} steps", flush=True)
        if "kills" in parts:
            for kind, (made, _) in expected.items():
                random_kills(faults, folder, kind, args.epochs, made, args.kills, rng)
        made, seconds = expected["labels"]
        if "end" in parts:
            kills_at_the_end(faults, folder, made, args.epochs)
        if "spoilt" in parts:
            spoilt_checkpoints(faults, folder, args.epochs, made)
        if "full" in parts and os.geteuid() == 0:
            full_disks(faults, folder, args.epochs, made, seconds)
    sys.exit(f"{faults.count} faults" if faults.count else 0)


if __name__ == "__main__":
    main()
