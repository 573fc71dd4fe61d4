"""Models that run."""

from __future__ import annotations

import os
from typing import Any

import numpy.typing as npt

from . import _compress
from ._data import Path, array


class Runs:
    """A function from inputs to outputs, with their names and types."""

    def __init__(self, signature: _compress.Model | _compress.Predict) -> None:
        self._signature = signature

    @property
    def inputs(self) -> dict[str, str]:
        """The type of each input, such as `f32[N,3,224,224]`, by its name."""
        return dict(self._signature.inputs)

    @property
    def outputs(self) -> dict[str, str]:
        """The type of each output by its name."""
        return dict(self._signature.outputs)

    def __call__(self, *inputs: Any, **named: Any) -> dict[str, npt.NDArray[Any]]:
        """Runs on arrays, by position or by name (keywords, or one dict), and returns the outputs by name."""
        return self._signature(*_arrays(inputs), **{name: array(value) for name, value in named.items()})


class Model(Runs):
    """A model on the runtime of this package.

    >>> model = Model("model.onnx")
    >>> model.run(images)["logits"]

    `engine` and `device` are those of the command.
    """

    def __init__(self, path: Path, *, engine: str = "auto", device: str = "auto") -> None:
        super().__init__(_compress.Model(os.fspath(path), device, engine))

    def run(self, *inputs: Any, **named: Any) -> dict[str, npt.NDArray[Any]]:
        """Runs the model on arrays, by position or by name (keywords, or one dict), and returns its outputs by name."""
        return self(*inputs, **named)


class Predict(Runs):
    """A model that is being evaluated, until it has its score."""


def _arrays(inputs: tuple[Any, ...]) -> list[Any]:
    """What a call is given by position, as arrays."""
    return [
        {name: array(value) for name, value in one.items()} if isinstance(one, dict) else array(one) for one in inputs
    ]
