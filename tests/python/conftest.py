"""The Python package, installed from its wheel into a virtual environment that has nothing else of ours."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import ROOT


@dataclass
class Installed:
    """An environment with the package in it."""

    folder: Path

    def run(self, *args, cwd=None, **kw) -> subprocess.CompletedProcess:
        """Runs a program of the environment, which finds no other program but those of the system."""
        path = f"{self.folder / 'bin'}:/usr/bin:/bin"
        env = {"PATH": path, "HOME": os.environ.get("HOME", "/"), "PYTHONDONTWRITEBYTECODE": "1"}
        program, *rest = args
        command = [str(self.folder / "bin" / program), *map(str, rest)]
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, **kw)

    def python(self, code: str, *args, cwd=None) -> subprocess.CompletedProcess:
        """Runs a script."""
        return self.run("python", "-c", code, *args, cwd=cwd)


@pytest.fixture(scope="session")
def installed() -> Installed:
    """The package, as tests/run installs it."""
    folder = Path(os.environ.get("COMPRESS_PYTHON", ROOT / "target" / "python"))
    if not (folder / "bin" / "compress").exists():
        pytest.skip(f"the package is not installed in {folder}: tests/run does that")
    return Installed(folder)
