"""What a job found out."""

from __future__ import annotations

import html
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any


class Report(Mapping[str, Any]):
    """The report of a job: a mapping with the fields of `report.json`. `print` shows it as the command does, a notebook as
    a table."""

    def __init__(self, fields: dict[str, Any], text: str) -> None:
        self._fields = fields
        self._text = text

    @classmethod
    def parse(cls, report: str, text: str) -> Report:
        """The report that a job gave as JSON, with its text."""
        fields = json.loads(report)
        # What `inspect` shows of a graph is text, and of channels a list.
        return cls(fields if isinstance(fields, dict) else {"shown": fields}, text)

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    @property
    def output(self) -> pathlib.Path | None:
        """The model that the job wrote."""
        output = self.get("output")
        return pathlib.Path(output["path"]) if isinstance(output, dict) else None

    @property
    def passed(self) -> bool:
        """Whether no gate failed, and the result is fit for use; of a sweep, whether that holds for one of its models."""
        if "sweep" in self:
            return any(point["passed"] for point in self["sweep"])
        gates = all(gate["passed"] for gate in self.get("gates") or [])
        return gates and self.get("unusable") is None

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<Report: {', '.join(self)}>"

    def _repr_html_(self) -> str:
        if not any(line[16:].split() == ["before", "after"] for line in self._text.splitlines()):
            return f"<pre>{html.escape(self._text)}</pre>"
        rows = []
        for line in self._text.splitlines():
            rows.append(_row(line))
        return f'<table style="text-align: left">{"".join(rows)}</table>'


def _row(line: str) -> str:
    """A line of the text as a row: name, before, after and note stand at fixed places in it."""
    if not line.startswith("  ") or line.lstrip().startswith(("note:", "WARNING:", "gate ")):
        return f'<tr><td colspan="4" style="text-align: left">{html.escape(line.strip())}</td></tr>'
    cells = line[2:16], line[16:30], line[30:44], line[44:]
    name, *figures = (html.escape(cell.strip()) for cell in cells)
    return f'<tr><th scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in figures)}</tr>'
