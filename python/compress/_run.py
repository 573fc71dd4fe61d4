"""Runs jobs: sends them off, hears what they tell, answers what they ask."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias

from . import _compress
from ._data import given, is_path
from ._errors import GateError
from ._model import Predict
from ._progress import Bars
from ._report import Report

log = logging.getLogger("compress")


Evaluate: TypeAlias = "Callable[[Predict], float]"
"""Scores a model: is given a function from inputs to outputs, and returns a number; a higher one is better."""


@dataclass(frozen=True)
class Metrics:
    """Where a training job is."""

    epoch: int
    """Epochs that are done."""
    epochs: int
    """All epochs."""
    step: int
    """Steps that are done."""
    loss: float | None
    """The mean loss since the last score; None before training."""
    metric: str
    """What the model is scored by."""
    score: float | None
    """The score on samples that are held out."""
    samples_per_second: float
    """The speed."""


class Job:
    """A job that runs: an iterable of what it tells."""

    def __init__(self, kind: str, keys: dict[str, Any]) -> None:
        keys = {name: value for name, value in keys.items() if name not in ("self", "__class__")}
        self._evaluate: Evaluate | None = keys.pop("evaluate", None)
        self._strict = bool(keys.get("strict"))
        self._bars = Bars(keys.pop("progress", True))
        ways = {name: keys.pop(name) for name in ("force", "resume") if name in keys}
        data = {name: given(keys.pop(name)) for name in ("data", "eval") if _is_given(keys.get(name))}
        recipe = {"job": kind} | {name.replace("_", "-"): _plain(value) for name, value in keys.items()}
        # Recipes need the data of some jobs; what is given takes the place of this name.
        recipe |= {name: "memory" for name in data}
        evaluates = self._evaluate is not None
        self._job = _compress.Job(
            json.dumps(recipe),
            data=data.get("data"),
            eval=data.get("eval"),
            evaluates=evaluates,
            force=bool(ways.get("force")),
            resume=bool(ways.get("resume")),
        )
        self._result: Report | None = None
        self._failed: Exception | None = None

    def events(self) -> Generator[dict[str, Any], None, None]:
        """What the job tells, until it is over. To leave the loop stops the job."""
        over = False
        try:
            while (told := self._job.next()) is not None:
                if isinstance(told, str):
                    event: dict[str, Any] = json.loads(told)
                    self._show(event)
                    yield event
                else:
                    self._score(told)
            over = True
        finally:
            self._bars.close()
            if not over:
                self._end()

    def result(self) -> Report:
        """The report of a job that is over.

        Raises `GateError` when a gate failed.
        """
        if self._failed is not None:
            raise self._failed
        if self._result is None:
            try:
                report, text, failed, undone = self._job.result()
            except Exception as e:
                self._failed = e
                raise
            self._result = Report.parse(report, text)
            for what in undone:
                warnings.warn(what, stacklevel=4)
            if failed is not None:
                self._failed = GateError(failed, self._result)
                raise self._failed
        return self._result

    def _show(self, event: dict[str, Any]) -> None:
        self._bars.show(event)
        if event["kind"] in ("note", "undone"):
            log.info(event["line"])

    def _score(self, asked: _compress.Predict) -> None:
        assert self._evaluate is not None  # Only who evaluates is asked.
        try:
            score = float(self._evaluate(Predict(asked)))
        except BaseException as e:
            asked.fail(repr(e))
            raise
        log.info("evaluated: %s", score)
        asked.score(score)

    def _end(self) -> None:
        """Stops the job, and waits until it is over, so that it holds no file any more."""
        self._job.stop()
        while self._job.next() is not None:
            pass


def _is_given(data: Any) -> bool:
    return data is not None and not is_path(data)


def _plain(value: Any) -> Any:
    """A value as a recipe has it."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return value


def run(kind: str, keys: dict[str, Any]) -> Report:
    """Does a job, and returns its report."""
    job = Job(kind, keys)
    for _ in job.events():
        pass
    return job.result()


class TrainingJob:
    """A training job, which yields its metrics as it goes."""

    def __init__(self, keys: dict[str, Any]) -> None:
        self._keys = keys
        self._job: Job | None = None
        self._stopped = False

    def __iter__(self) -> Iterator[Metrics]:
        """Begins the job, and yields its metrics after each score: before training, then after each epoch.

        Raises the job's error once the metrics that came before it were seen.
        """
        self._job = Job("distill", self._keys)
        self._stopped = False
        with closing(self._job.events()) as events:
            for event in events:
                if event["kind"] == "scored":
                    yield _metrics(event)
                if self._stopped:
                    return
        self._job.result()

    def run(self) -> Report:
        """Does the job, and returns its report."""
        for _ in self:
            pass
        return self.report

    def stop(self) -> None:
        """Ends the job after the metrics that are seen now. It leaves a checkpoint, from which `resume` goes on."""
        self._stopped = True

    @property
    def report(self) -> Report:
        """The report, once the job is over."""
        if self._job is None:
            raise RuntimeError("the job has not begun: iterate over it, or call run()")
        return self._job.result()


def _metrics(event: dict[str, Any]) -> Metrics:
    return Metrics(
        # Before the first step it is the score of the model as it was.
        epoch=event["epoch"] + 1 if event["step"] else 0,
        epochs=event["epochs"],
        step=event["step"],
        loss=event["loss"] if event["step"] else None,
        metric=event["metric"],
        score=event["score"],
        samples_per_second=event["samples_per_second"],
    )
