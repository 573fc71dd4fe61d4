"""Quantised operators and the same in floats, as ONNX Runtime's kernels compute them."""

from . import blocks, convolution, dynamic, floats, grouped, linear, moving, pointwise
from .net import Case

MODULES = (convolution, linear, pointwise, moving, blocks, floats, dynamic, grouped)


def all_cases() -> list[Case]:
    """All cases; their names are unique."""
    cases = [case for module in MODULES for case in module.cases.all]
    names = [case.name for case in cases]
    twice = {n for n in names if names.count(n) > 1}
    assert not twice, f"two cases are called {sorted(twice)}"
    return cases


__all__ = ["Case", "all_cases"]
