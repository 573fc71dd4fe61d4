"""What the simplifying passes made of onnx's backend test suite: each file passes onnx's checker,
and gives the right outputs wherever ONNX Runtime gives them for the original. tests/conformance/main.rs wrote them."""

import os
from pathlib import Path

import onnx
import pytest
from conformance.with_onnxruntime import run
from support import ROOT

FOLDER = Path(os.environ.get("COMPRESS_CONFORMANCE", "nowhere"))
PASSING = (ROOT / "tests/conformance/passing.txt").read_text().split()
CHECKED = [name for name in PASSING if (FOLDER / name / "simplified.onnx").exists()]


def refusal(check, model):
    """What `check` says against a file, or nothing."""
    try:
        check(model)
    except Exception as e:
        return str(e)
    return None


def checker(path):
    onnx.checker.check_model(path, full_check=True)


@pytest.mark.skipif(not CHECKED, reason="COMPRESS_CONFORMANCE is not set, or tests/conformance has not run")
@pytest.mark.parametrize("check", [checker, run])
def test_what_is_written_is_valid(check):
    assert len(CHECKED) == len(PASSING)
    wrong = []
    for name in CHECKED:
        said = refusal(check, FOLDER / name / "simplified.onnx")
        if said and refusal(check, FOLDER / name / "model.onnx") is None:
            wrong.append(f"{name}: {said[:300]}")
    assert not wrong, f"{len(wrong)} of {len(CHECKED)}\n" + "\n".join(wrong)
