#!/usr/bin/env python3
"""Writes every case of tests/operators/qdq_cases as an ONNX test data set: `make_qdq_cases.py FOLDER`.

tests/operators/executor.rs runs them on each of our engines.
"""

import shutil
import sys
from pathlib import Path

from qdq_cases import all_cases


def main(folder: Path):
    """Replaces what an earlier run left in `folder`."""
    marker = folder / ".qdq-cases"
    if folder.exists() and any(folder.iterdir()) and not marker.exists():
        sys.exit(f"{folder} holds other things; give an empty or a new folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    marker.touch()
    wrong = []
    cases = all_cases()
    for case in cases:
        try:
            case.write(folder / case.name)
        except Exception as e:
            wrong.append(f"{case.name}: {e}")
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(cases)} quantised cases in {folder}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
