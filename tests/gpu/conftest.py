"""What the tests of both devices run."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support import ROOT, run_command

DIGITS = ROOT / "models" / "digits"


@pytest.fixture(scope="module")
def int8(tmp_path_factory):
    """The digits' network in INT8."""
    out = tmp_path_factory.mktemp("int8") / "int8.onnx"
    run_command(DIGITS / "digits.onnx", "--int8", "--data", DIGITS / "train.npz", "-o", out, "--no-check")
    return out


@pytest.fixture
def learns_the_same(tmp_path):
    """Whether twenty steps from nothing make on a device what they make on the CPU; `run` is given the command's arguments."""

    def check(run, device):
        train, some = np.load(DIGITS / "train.npz"), tmp_path / "some.npz"
        np.savez(some, x=train["x"][:320], y=train["y"][:320])
        trained = {}
        for place in ("cpu", device):
            out = tmp_path / f"{place}.onnx"
            job = ["distill", DIGITS / "digits.onnx", "--data", some, "--from-nothing", "--epochs", 1, "--batch", 16]
            run(*job, "--lr", 0.01, "--labels", 1, "--seed", 3, "--device", place, "-o", out, "--quiet")
            trained[place] = {t.name: numpy_helper.to_array(t) for t in onnx.load(out).graph.initializer}
        assert trained["cpu"].keys() == trained[device].keys()
        for name, of_cpu in trained["cpu"].items():
            if of_cpu.dtype == np.float32 and of_cpu.size:
                near = 2e-3 * np.abs(of_cpu).max()
                np.testing.assert_allclose(trained[device][name], of_cpu, rtol=0, atol=near, err_msg=name)

    return check
