#!/usr/bin/env python3
"""Which cases from files ONNX Runtime passes: `with_onnxruntime.py FOLDER > onnxruntime.txt`.

FOLDER is what generate.py wrote. The categories pytorch-converted and pytorch-operator are the
ones whose goal is set by what ONNX Runtime passes.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper


def values(data: Path, which: str):
    files = sorted(data.glob(f"{which}_*.pb"), key=lambda p: int(p.stem.rsplit("_", 1)[1]))
    return [numpy_helper.to_array(onnx.TensorProto.FromString(f.read_bytes())) for f in files]


def run(model: Path):
    """Runs a model of a case; raises when ONNX Runtime can't, or gives something else."""
    about = json.loads((model.parent / "case.json").read_text())
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for data in model.parent.glob("test_data_set_*"):
        names = [i.name for i in session.get_inputs()]
        got = session.run(None, dict(zip(names, values(data, "input"))))
        for a, b in zip(got, values(data, "output"), strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            np.testing.assert_allclose(a, b, rtol=about["rtol"], atol=about["atol"])


def passes(case: Path) -> bool:
    try:
        run(case / "model.onnx")
    except Exception as e:
        print(f"{case.name}: {e}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    onnxruntime.set_default_logger_severity(4)
    for category in ["pytorch-converted", "pytorch-operator"]:
        for case in sorted((Path(sys.argv[1]) / category).iterdir()):
            if passes(case):
                print(f"{category}/{case.name}")
