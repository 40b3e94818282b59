"""The figures that the GLFC paper prints: its nine tables, cell for cell, as JSON files next to this module.

Every cell ends in .0, .3 or .7: it is the mean of three runs, each of them a whole number of percent. Read as thirds,
the cells give their mean exactly; a printed average that is not this mean, rounded, is a slip, which the files mark.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal


@dataclass(frozen=True)
class PublishedRow:
    """One row of accuracies in percent, with the figures printed next to them."""

    method: str  # the registry's name
    printed_label: str
    memory: int  # exemplars per client
    classes: tuple[int, ...]  # seen so far, one number a cell
    accuracy: tuple[float, ...]
    printed_average: float | None  # None where the paper averages only parts of the row
    printed_difference: float | None = None  # GLFC's printed average minus this one
    slip: str | None = None  # what is wrong with the print, and what it should be

    @property
    def average(self) -> float:
        """Return the mean of the cells, free of slips in the print."""
        return exact_mean(self.accuracy)

    @property
    def last(self) -> float:
        """Return the accuracy after the last task of the row."""
        return self.accuracy[-1]


@dataclass(frozen=True)
class PublishedTable:
    """One table of the paper or of its supplement."""

    number: int  # in the order of print, through paper and supplement
    place: Literal["paper", "supplement"]
    title: str  # in our words
    dataset: str  # the name of its data source
    tasks: int
    varies: Literal["method", "memory"]  # what tells the rows apart
    classes: tuple[int, ...]
    rows: tuple[PublishedRow, ...]


def exact_mean(cells: Sequence[float]) -> float:
    """Return the mean of printed cells, each read as the third it was rounded from.

    >>> exact_mean([50.3, 50.3, 50.3])
    50.333333333333336
    """
    return sum(round(3 * cell) for cell in cells) / (3 * len(cells))


@cache
def published_tables() -> tuple[PublishedTable, ...]:
    """Return all tables in the order of print."""
    folder = importlib.resources.files(__name__)
    files = [entry for entry in folder.iterdir() if entry.name.endswith(".json")]
    tables = [_table(json.loads(file.read_text("utf-8"))) for file in files]
    return tuple(sorted(tables, key=lambda table: table.number))


def published_row(dataset: str, tasks: int, method: str, memory: int = 2000) -> PublishedRow | None:
    """Return all that is printed on a method in one experiment, or None if no table has it.

    Twenty tasks are printed in two halves: their row joins them and has no printed average.

    >>> row = published_row("cifar100", 10, "glfc")
    >>> row.last, row.printed_average
    (50.0, 66.9)
    """
    found = [
        row
        for table in published_tables()
        if (table.dataset, table.tasks) == (dataset, tasks)
        for row in table.rows
        if (row.method, row.memory) == (method, memory)
    ]
    if not found:
        return None
    cells = {count: cell for row in found for count, cell in zip(row.classes, row.accuracy, strict=True)}
    first = found[0]
    if len(cells) == len(first.classes):  # further tables only repeat it
        return first
    classes = tuple(sorted(cells))
    accuracy = tuple(cells[count] for count in classes)
    return replace(first, classes=classes, accuracy=accuracy, printed_average=None, printed_difference=None, slip=None)


def _table(document: dict[str, Any]) -> PublishedTable:
    classes = tuple(document["classes"])
    rows = [
        PublishedRow(
            method=row["method"],
            printed_label=row["printed_label"],
            memory=row["memory"] if document["varies"] == "memory" else document["memory"],
            classes=classes,
            accuracy=tuple(row["accuracy"]),
            printed_average=row["printed_average"],
            printed_difference=row.get("printed_difference"),
            slip=row.get("slip"),
        )
        for row in document["rows"]
    ]
    return PublishedTable(
        number=document["table"],
        place=document["place"],
        title=document["title"],
        dataset=document["dataset"],
        tasks=document["tasks"],
        varies=document["varies"],
        classes=classes,
        rows=tuple(rows),
    )
