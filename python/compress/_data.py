"""Data as Python has it: paths, arrays, iterables of batches or samples."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from . import _compress

Path: TypeAlias = "str | os.PathLike[str]"

Arrays: TypeAlias = "Mapping[str, Any] | tuple[Any, ...] | list[Any] | npt.NDArray[Any]"

Data: TypeAlias = "Path | Arrays | Iterable[Arrays]"
"""Where data is: a path; arrays of all samples (a dict by the name of the input, with classes under `y`, or a tuple, with
classes last); or an iterable of such batches, or of such samples, as a DataLoader is. Arrays are read in place: NumPy's, and
tensors of PyTorch on the CPU."""


_TEXT = "OSU"
"""Kinds of arrays that hold no numbers."""


def is_path(data: Data) -> bool:
    """Whether the data is a file or a folder."""
    return isinstance(data, (str, os.PathLike))


def given(data: Data) -> _compress.Data:
    """The data for a job."""
    if isinstance(data, (Mapping, tuple, np.ndarray)) or _is_tensor(data):
        return _compress.Data([_item(data)])
    if not isinstance(data, Iterable):
        raise TypeError(f"data is a path, arrays or an iterable of arrays, not {type(data).__name__}")
    return _compress.Data([_item(one) for one in data])


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "__array__") and hasattr(value, "detach")


def _item(item: Any) -> dict[str, npt.NDArray[Any]] | list[npt.NDArray[Any]]:
    """A batch or a sample, as arrays."""
    if isinstance(item, Mapping):
        arrays = {str(name): array(value) for name, value in item.items()}
        for name in ("y", "labels"):
            if name in arrays and arrays[name].dtype.kind in _TEXT:
                raise TypeError(f"`{name}` is an array of {arrays[name].dtype}: labels are numbers of classes")
        # Names of files, say, are no inputs.
        return {name: value for name, value in arrays.items() if value.dtype.kind not in _TEXT}
    if isinstance(item, (tuple, list)):
        return [array(value) for value in item]
    return [array(item)]


def array(value: Any) -> npt.NDArray[Any]:
    """A contiguous array in the same memory, where that is possible."""
    if _is_tensor(value):
        value = value.detach().cpu()
    made = np.asarray(value, order="C")
    return made if made.dtype.isnative else made.astype(made.dtype.newbyteorder("="))
