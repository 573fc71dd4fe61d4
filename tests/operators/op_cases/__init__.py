"""Every operator the compiler knows, on small random inputs, as ONNX Runtime computes it."""

from . import (
    index,
    integer,
    layout,
    linear,
    moving,
    norm,
    pointwise,
    quant,
    reduce,
    resize,
    sampling,
    sequence,
    shapes,
    windows,
)
from .build import FORMS, Case

MODULES = (
    windows,
    linear,
    norm,
    pointwise,
    reduce,
    layout,
    shapes,
    index,
    resize,
    quant,
    sequence,
    integer,
    moving,
    sampling,
)


def all_cases() -> list[Case]:
    """All cases; their names are unique."""
    cases = [case for module in MODULES for case in module.cases.all]
    names = [case.name for case in cases]
    twice = {n for n in names if names.count(n) > 1}
    assert not twice, f"two cases are called {sorted(twice)}"
    return cases


__all__ = ["FORMS", "Case", "all_cases"]
