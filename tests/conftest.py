"""Fixtures: the command, the folder of real models, and a quiet ONNX Runtime."""

import os
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from support import STARTED, binary, run_command


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: left out by tests/run --quick and --no-slow")


@pytest.fixture(scope="session", autouse=True)
def quiet_runtime():
    """ONNX Runtime warns of much that is none of our business."""
    ort.set_default_logger_severity(3)


@pytest.fixture(scope="session")
def compress():
    """Runs the command."""
    if not binary().exists():
        pytest.exit(f"{binary()} is missing: run `cargo build`, or tests/run", returncode=1)
    return run_command


@pytest.fixture(scope="session")
def zoo() -> Path:
    """The folder of real models."""
    if not os.environ.get("COMPRESS_ZOO"):
        pytest.skip("COMPRESS_ZOO is not set")
    return Path(os.environ["COMPRESS_ZOO"])


@pytest.fixture(autouse=True)
def no_process_is_left():
    """A job that trains for hours would take the time of all tests after it."""
    yield
    while STARTED:
        process = STARTED.pop()
        process.kill()
        process.wait()


@pytest.fixture
def rng():
    """The same numbers every time."""
    return np.random.default_rng(0)
