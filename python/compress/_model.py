"""Models that run."""

from __future__ import annotations

import os
from typing import Any

import numpy.typing as npt

from . import _compress
from ._data import Path, array


class Model:
    """A model on the runtime of this package.

    >>> model = Model("model.onnx")
    >>> model.run(images)["logits"]

    `engine` and `device` are those of the command.
    """

    def __init__(self, path: Path, *, engine: str = "auto", device: str = "auto") -> None:
        self._model = _compress.Model(os.fspath(path), device, engine)

    @property
    def inputs(self) -> dict[str, str]:
        """The type of each input, such as `f32[N,3,224,224]`, by its name."""
        return dict(self._model.inputs)

    @property
    def outputs(self) -> dict[str, str]:
        """The type of each output by its name."""
        return dict(self._model.outputs)

    def run(self, *inputs: Any, **named: Any) -> dict[str, npt.NDArray[Any]]:
        """Runs the model on arrays, by position or by name (keywords, or one dict), and returns its outputs by name."""
        return self._model.run(*arrays(inputs), **{name: array(value) for name, value in named.items()})

    __call__ = run


def arrays(inputs: tuple[Any, ...]) -> list[Any]:
    """What a call is given by position, as arrays."""
    return [
        {name: array(value) for name, value in one.items()} if isinstance(one, dict) else array(one) for one in inputs
    ]
