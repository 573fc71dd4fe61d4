"""Starts the command as several processes; tests/run --mpi builds it with MPI and runs these tests."""

import os
import shutil
import signal
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

TIMEOUT = 300


@dataclass
class Ranks:
    """How `mpirun` starts the command."""

    binary: Path

    def start(self, count, *args, env=None):
        # Root is refused otherwise, and machines with few cores.
        allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "NO_COLOR": "1"}
        launch = ["mpirun", "--oversubscribe", "-n", count, self.binary, *args]
        job = uuid.uuid4().hex
        process = subprocess.Popen(
            [str(a) for a in launch],
            env={**os.environ, **allowed, "COMPRESS_TEST_JOB": job, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        process.job = job
        return process

    def run(self, count, *args, code=0, env=None):
        """Runs it to its end: all that it said."""
        return self.ended(self.start(count, *args, env=env), code)

    def ended(self, process, code=0):
        try:
            out, err = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            pytest.fail(f"it hangs\n{out}\n{err}")
        said = f"exit code {process.returncode}\n{out}\n{err}"
        assert process.returncode == code and "panicked" not in err, said
        return out + err


@pytest.fixture(scope="session")
def ranks():
    binary = os.environ.get("COMPRESS_MPI_BIN")
    if not binary or not shutil.which("mpirun"):
        pytest.skip("COMPRESS_MPI_BIN is not set, or there is no mpirun: tests/run --mpi")
    return Ranks(Path(binary))
