"""A model compression compiler for ONNX: prunes, quantises, distils, measures and gates models.

    import compress

    report = compress.compress("model.onnx", int8=True, data=loader, evaluate=accuracy, max_drop=0.01)
    print(report)

Each job of the command `compress` is a function of the same name, with its options as keyword arguments; `Distill` is a
training job whose metrics one sees as it goes. Data can be a path, arrays, or any iterable of batches, such as a DataLoader
of PyTorch. A job that fails raises an `Error` of a class for each kind.
"""

from . import _onnxruntime  # noqa: F401
from ._compress import __version__
from ._data import Data
from ._errors import (
    DataError,
    DeviceError,
    Error,
    FileError,
    GateError,
    InternalError,
    InterruptedJob,
    LimitError,
    MalformedError,
    UnsupportedError,
    UsageError,
)
from ._jobs import (
    Distill,
    answers,
    bench,
    check,
    compress,
    draft,
    explain,
    inspect,
    merge,
    search,
    sensitivity,
    sweep,
)
from ._model import Model, Predict
from ._report import Report
from ._run import Evaluate, Metrics

__all__ = [
    "Data",
    "DataError",
    "DeviceError",
    "Distill",
    "Error",
    "Evaluate",
    "FileError",
    "GateError",
    "InternalError",
    "InterruptedJob",
    "LimitError",
    "MalformedError",
    "Metrics",
    "Model",
    "Predict",
    "Report",
    "UnsupportedError",
    "UsageError",
    "__version__",
    "answers",
    "bench",
    "check",
    "compress",
    "draft",
    "explain",
    "inspect",
    "merge",
    "search",
    "sensitivity",
    "sweep",
]
