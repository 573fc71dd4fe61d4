"""Bad inputs, row by row: what the command is given, and what it has to say.

Each module has the cases of one class of rows. A case writes its files into an empty folder and
names the command's arguments; tests/test_hostile.py runs it under limits on memory and time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROWS = range(1, 69)


@dataclass
class Case:
    """One input."""

    row: int
    name: str
    # Writes the files into a folder and returns the arguments, the model first.
    make: Callable[[Path], list]
    # The exit code, or those that are right.
    code: int | tuple[int, ...]
    # What the message says, or the report's warnings where the code is 0.
    says: str = ""
    # Where the code is 0: what to look at in the folder afterwards, given what was reported.
    check: Callable[[Path, dict], None] | None = None

    @property
    def id(self):
        return f"{self.row:02}-{self.name}"


def bad(row, name, model, code, says="", *flags, check=None):
    """A case of one file, `bad.onnx`: bytes, a model, or a function that makes either."""

    def make(folder):
        made = model() if callable(model) else model
        path = folder / "bad.onnx"
        path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
        return [path, *flags]

    return Case(row, name, make, code, says, check)


def all_cases():
    """Every case, by row."""
    from hostile import data, limits, paths, spec, strange, usage, wire

    modules = [wire, limits, spec, strange, paths, data, usage]
    return sorted((c for m in modules for c in m.CASES), key=lambda c: (c.row, c.name))
