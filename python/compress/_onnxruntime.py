"""ONNX Runtime of the environment that this interpreter is of, whether it is active or not."""

import importlib.util
from pathlib import Path

from . import _compress

if spec := importlib.util.find_spec("onnxruntime"):
    for folder in spec.submodule_search_locations or []:
        _compress.offer_onnxruntime(str(Path(folder) / "capi"))
