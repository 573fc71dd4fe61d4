"""Sweeps, searches and figures of layers that the workers of a Ray cluster share.

    from compress import on_ray

    ray.init()  # or ray.init("ray://head:10001")
    report = on_ray.sweep("model.onnx", sweep=[0.5, 0.6, 0.7, 0.8, 0.9], data="train.npz")

Each part is a task; Ray repeats the task of a worker that was lost, up to `retries` times. Sweeps, figures of layers and answers are the
same as without Ray. Workers work in the folder in which the program runs, so that all machines have to see it under the same path, and the
files too. Data in memory go to the workers through Ray.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from typing import Any

from ._data import Data, Path, is_path
from ._errors import DeviceError, FileError, GateError, UsageError
from ._jobs import answers as _answers
from ._jobs import merge
from ._jobs import search as _search
from ._jobs import sensitivity as _sensitivity
from ._jobs import sweep as _sweep
from ._report import Report

__all__ = ["answers", "search", "sensitivity", "sweep"]

log = logging.getLogger("compress")

_JOBS: dict[str, Callable[..., Report]] = {
    "answers": _answers,
    "sweep": _sweep,
    "search": _search,
    "sensitivity": _sensitivity,
}


def sweep(
    model: Path,
    *,
    sweep: float | list[float],
    shards: int | None = None,
    cpus: float = 1,
    gpus: float = 0,
    retries: int = 3,
    **options: Any,
) -> Report:
    """Compresses a model by several fractions of its weights, as tasks of Ray.

    Args:
        model: The ONNX model.
        sweep: The fractions.
        shards: Tasks [default: one for each fraction].
        cpus: Processors of a task, and its threads.
        gpus: GPUs of a task.
        retries: How often the task of a lost worker is repeated.
        options: Those of `compress.sweep`.
    """
    fractions = [sweep] if isinstance(sweep, (int, float)) else list(sweep)
    of = len(set(fractions)) if shards is None else shards
    return _divided("sweep", of, (cpus, gpus, retries), {"model": model, "sweep": fractions, **options})


def search(
    model: Path,
    *,
    data: Path,
    shards: int | None = None,
    cpus: float = 1,
    gpus: float = 0,
    retries: int = 3,
    **options: Any,
) -> Report:
    """Searches for the best ways to compress a model, in several tasks of Ray at once. The front is that of all ways that were tried.

    Args:
        model: The ONNX model.
        data: Data to calibrate, to train and to choose on: a path.
        shards: Tasks that search at once [default: as many as the cluster has processors for].
        cpus: Processors of a task, and its threads.
        gpus: GPUs of a task.
        retries: How often the task of a lost worker is repeated; it goes on with what was tried.
        options: Those of `compress.search`.
    """
    _paths("search", data, options.get("eval"))
    return _divided("search", shards, (cpus, gpus, retries), {"model": model, "data": data, **options})


def sensitivity(
    model: Path,
    *,
    data: Path,
    shards: int | None = None,
    cpus: float = 1,
    gpus: float = 0,
    retries: int = 3,
    **options: Any,
) -> Report:
    """Measures how much each layer minds INT8, zeros and the loss of channels, as tasks of Ray.

    Args:
        model: The ONNX model.
        data: Data to run on: a path.
        shards: Tasks [default: as many as the cluster has processors for].
        cpus: Processors of a task, and its threads.
        gpus: GPUs of a task.
        retries: How often the task of a lost worker is repeated.
        options: Those of `compress.sensitivity`.
    """
    _paths("sensitivity", data)
    return _divided("sensitivity", shards, (cpus, gpus, retries), {"model": model, "data": data, **options})


def answers(
    teacher: Path,
    *,
    data: Data,
    shards: int | None = None,
    cpus: float = 1,
    gpus: float = 0,
    retries: int = 3,
    **options: Any,
) -> list[str]:
    """Finds what a teacher answers to data, as tasks of Ray. Returns the files, which `Distill(answers=...)` reads from their folder.

    Args:
        teacher: The ONNX model.
        data: The data that will be trained on.
        shards: Tasks [default: as many as the cluster has processors for].
        cpus: Processors of a task, and its threads.
        gpus: GPUs of a task.
        retries: How often the task of a lost worker is repeated.
        options: Those of `compress.answers`.
    """
    return _parts("answers", shards, (cpus, gpus, retries), {"teacher": teacher, "data": data, **options})


def _paths(job: str, *data: Data | None) -> None:
    if any(_in_memory(one) for one in data):
        raise UsageError(f"{job} on Ray takes its data from a path: who puts the parts together looks at them again")


def _divided(job: str, of: int | None, needs: tuple[float, float, int], options: dict[str, Any]) -> Report:
    """Has the parts of a job done, and puts them together."""
    made = _parts(job, of, needs, options)
    # Folders of searches have models that may be wanted; a report of a part has nothing that the whole has not, once that is there.
    reports = made if job != "search" else []
    try:
        whole = merge(made, force=bool(options.get("force")))
    except GateError:
        _remove(reports)
        raise
    except BaseException:
        log.warning("the parts are done, and can be put together by compress.merge(%r)", made)
        raise
    _remove(reports)
    return whole


def _remove(paths: list[str]) -> None:
    for path in paths:
        os.remove(path)


def _parts(job: str, of: int | None, needs: tuple[float, float, int], options: dict[str, Any]) -> list[str]:
    """Has the parts of a job done. Returns what each wrote last, in the order of the parts."""
    ray = _ray()
    cpus, gpus, retries = needs
    if not ray.is_initialized():
        ray.init()
    there = ray.cluster_resources()
    if cpus <= 0 or cpus > there.get("CPU", 0) or gpus > there.get("GPU", 0):
        count = ", ".join(f"{there.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
        raise UsageError(f"a task of {cpus:g} CPUs and {gpus:g} GPUs: the cluster has {count}")
    if of is None:
        of = max(1, int(there["CPU"] // cpus))
    if of < 1:
        raise UsageError(f"shards = {of}: a job has at least one part")
    for refused in ("shard", "resume"):
        if options.get(refused):
            raise UsageError(f"`{refused}` has no meaning on Ray: tasks take their parts themselves")
    options = {"threads": max(1, int(cpus)), **options, "progress": False}
    # Ray stores them once, and each machine gets them once.
    stored = {name: ray.put(_whole(options.pop(name))) for name in ("data", "eval") if _in_memory(options.get(name))}
    begun = ray.remote(num_cpus=0)(_Begun).remote()
    task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=retries)(_part)
    folder = os.getcwd()
    parts = {task.remote(job, f"{i}/{of}", folder, options, begun, stored): f"{i}/{of}" for i in range(1, of + 1)}
    # In the order of the parts, in whatever order they end.
    reports: dict[str, str] = {}
    waiting = list(parts)
    try:
        while waiting:
            (done, *_), waiting = ray.wait(waiting)
            try:
                reports[parts[done]] = ray.get(done)
            except ray.exceptions.RayTaskError as e:
                raise e.cause from None
            except ray.exceptions.RayError as e:
                raise DeviceError(f"part {parts[done]} was lost, begun again {retries} times at most: {e}") from e
            log.info("part %s is done, %d of %d", parts[done], len(reports), of)
    finally:
        for ref in waiting:
            ray.cancel(ref)
    return [reports[name] for name in parts.values()]


class _Begun:
    """Knows which parts were begun before, by a worker that was lost."""

    def __init__(self) -> None:
        self._parts: set[str] = set()

    def again(self, part: str) -> bool:
        again = part in self._parts
        self._parts.add(part)
        return again


def _part(job: str, part: str, folder: str, options: dict[str, Any], begun: Any, stored: dict[str, Any]) -> str:
    """Does a part, in a worker. Returns where its report is."""
    ray = _ray()
    try:
        os.chdir(folder)
    except OSError as e:
        where = socket.gethostname()
        raise FileError(f"{folder}: {where} has no such folder: it has to be one that all machines share") from e
    options |= {name: ray.get(data) for name, data in stored.items()}
    if ray.get(begun.again.remote(part)):
        log.warning("part %s is begun again", part)
        options |= {"resume": True} if job == "search" else {"force": True}
    try:
        report = _JOBS[job](shard=part, **options)
    except GateError as e:
        # Gates are those of the whole.
        report = e.report
    return os.path.abspath(str(report["file"]))


def _in_memory(data: Data | None) -> bool:
    return data is not None and not is_path(data)


def _whole(data: Any) -> Any:
    """Data that can be sent: an iterable is read once."""
    return data if hasattr(data, "__array__") or isinstance(data, (dict, tuple, list)) else list(data)


def _ray() -> Any:
    try:
        import ray
    except ImportError as e:
        raise UsageError("Ray is not installed: pip install ray") from e
    return ray
