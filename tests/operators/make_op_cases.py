#!/usr/bin/env python3
"""Writes every operator case as an ONNX test data set: `make_op_cases.py FOLDER`.

tests/operators/ops.rs runs them on our runtime, tests/operators/test_ops.py puts them through the command.
"""

import shutil
import sys
from pathlib import Path

from op_cases import all_cases


def main(folder: Path):
    """Replaces what an earlier run left in `folder`."""
    marker = folder / ".op-cases"
    if folder.exists() and any(folder.iterdir()) and not marker.exists():
        sys.exit(f"{folder} holds other things; give an empty or a new folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    marker.touch()
    cases = all_cases()
    for case in cases:
        try:
            case.write(folder / case.name)
        except Exception as e:
            sys.exit(f"ONNX Runtime can't run the case {case.name}: {e}")
    print(f"{len(cases)} operator cases in {folder}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
