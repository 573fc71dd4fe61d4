"""Every row of bad inputs (tests/hostile/): the right exit code, one message, bounded memory and
time, and nothing left behind."""

import os
import resource
import subprocess
from pathlib import Path

import hostile
import onnx
import pytest
from support import binary, listing, parsed_report

# What the command may allocate besides what it maps; the libraries it starts with take little.
MEMORY = 1 << 30
SECONDS = 120
CASES = hostile.all_cases()


def limited(args):
    """Runs the command under the limits."""

    def limit():
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))

    return subprocess.run(
        [binary(), *map(str, args)],
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=2 * SECONDS,
        preexec_fn=limit,
    )


def codes(case):
    return case.code if isinstance(case.code, tuple) else (case.code,)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_bad_inputs(compress, tmp_path, case):
    path, *flags = case.make(tmp_path)
    before = listing(tmp_path)
    done = limited([path, "--json", *flags])
    said = f"exit code {done.returncode}\n{done.stderr[-4000:]}"
    assert done.returncode in codes(case) and "panicked" not in done.stderr, said
    if done.returncode:
        assert done.stderr.startswith("error: ") or "\nerror: " in done.stderr, said
        assert case.says in done.stderr, said
        assert len(done.stderr) < 4000, "a message is to be read"
        # Which file is wrong: the model, or what the flags name.
        if done.returncode != 2:
            assert any(Path(a).name in done.stderr for a in (path, *flags)), said
        assert listing(tmp_path) == before
    else:
        report = parsed_report(done.stdout)
        assert case.says in " ".join(report["warnings"]), said
        onnx.load(report["output"]["path"])
        if case.check:
            case.check(tmp_path, report)


@pytest.mark.parametrize("case", [c for c in CASES if c.row <= 57], ids=lambda c: c.id)
def test_inspect_says_the_same_of_bad_models(compress, tmp_path, case):
    path, *_ = case.make(tmp_path)
    before = listing(tmp_path)
    done = limited(["inspect", path])
    # What only the passes or a run would notice is none of its business.
    assert done.returncode in (*codes(case), 0) and "panicked" not in done.stderr, done.stderr[-4000:]
    assert listing(tmp_path) == before


def test_every_row_has_a_case():
    assert sorted({c.row for c in CASES}) == list(hostile.ROWS)
    assert len({c.id for c in CASES}) == len(CASES)
