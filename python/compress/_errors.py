"""What jobs raise: a class for each kind of error, as the command has an exit code for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._report import Report


class Error(Exception):
    """A job failed. The text names the file, the node and the way out."""


class UsageError(Error, ValueError):
    """The options contradict each other, or have impossible values."""


class MalformedError(Error):
    """The model breaks the ONNX specification."""


class LimitError(Error):
    """A size or a count is beyond what is accepted."""


class UnsupportedError(Error):
    """The model is valid, and has something that this version can't do."""


class FileError(Error, OSError):
    """A file is missing, unreadable, unwritable or in the way."""


class DataError(Error):
    """The data does not fit the model, or is itself broken."""


class DeviceError(Error):
    """The device that was asked for is not there."""


class GateError(Error):
    """A gate failed. The model is written all the same, and `report` says what was measured."""

    report: Report

    def __init__(self, text: str, report: Report) -> None:
        super().__init__(text)
        self.report = report

    def __reduce__(self) -> tuple[type, tuple[str, Report]]:
        return type(self), (str(self), self.report)


class InternalError(Error):
    """A defect of this package."""


class InterruptedJob(Error):
    """The job was asked to stop."""


# Tracebacks name them as users import them.
for _kind in (
    Error,
    UsageError,
    MalformedError,
    LimitError,
    UnsupportedError,
    FileError,
    DataError,
    DeviceError,
    GateError,
    InternalError,
    InterruptedJob,
):
    _kind.__module__ = "compress"
