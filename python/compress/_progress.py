"""Progress bars, where tqdm is installed."""

from __future__ import annotations

import importlib
from typing import Any


class Bars:
    """A bar for each step of a job that is going on."""

    def __init__(self, shown: bool) -> None:
        self._make = _tqdm() if shown else None
        self._bars: dict[int, Any] = {}

    def show(self, event: dict[str, Any]) -> None:
        """Shows what happened."""
        if self._make is None:
            return
        if event["kind"] == "batch":
            bar = self._bars.get(-1)
            total = event["epochs"] * event["batches"]
            if bar is None:
                bar = self._bars[-1] = self._make(total=total, desc="train", leave=False)
            bar.set_postfix(loss=event["loss"], refresh=False)
            bar.update(event["epoch"] * event["batches"] + event["batch"] - bar.n)
        elif event["kind"] == "began":
            self._bars[event["id"]] = self._make(total=event["total"], desc=event["name"], leave=False)
        elif event["kind"] == "advanced" and event["id"] in self._bars:
            bar = self._bars[event["id"]]
            bar.update(event["done"] - bar.n)
        elif event["kind"] == "ended" and event["id"] in self._bars:
            self._bars.pop(event["id"]).close()

    def close(self) -> None:
        """Removes all bars."""
        while self._bars:
            self._bars.popitem()[1].close()


def _tqdm() -> Any:
    try:
        return importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return None
