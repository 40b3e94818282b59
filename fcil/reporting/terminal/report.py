"""One model of a report on runs: tables, curves and remarks as data, which `render` shows in several ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fcil.experiment.summary import Summary
from fcil.reporting.tables import figure, headings, row

ACCURACY = "accuracy (%) over all classes seen, after each task"
MATRIX = "accuracy (%) after task i (rows) on the classes of task j"
LAST = 3  # cells of a row after the tasks


@dataclass(frozen=True)
class Panel:
    """A table with a heading; the first column is text, the others are figures."""

    heading: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Curve:
    """The accuracy of one run after each task."""

    label: str
    accuracy: tuple[float, ...]


@dataclass(frozen=True)
class Overview:
    """What there is to say about some runs of one scenario."""

    title: str
    tables: tuple[Panel, ...]
    curves: tuple[Curve, ...]
    facts: tuple[str, ...]  # a line per run
    warnings: tuple[str, ...] = ()


def report_on(title: str, summaries: Sequence[Summary]) -> Overview:
    """Return the report on runs side by side; on a single one with its accuracy matrix."""
    tasks = max(len(summary["accuracy"]) for summary in summaries)
    tables = [Panel(ACCURACY, tuple(headings(tasks)), tuple(_filled(summary, tasks) for summary in summaries))]
    if len(summaries) == 1 and tasks > 1:
        tables.append(_matrix(summaries[0]))
    return Overview(
        title,
        tuple(tables),
        tuple(Curve(_label(summary), tuple(summary["accuracy"])) for summary in summaries),
        tuple(_facts(summary) for summary in summaries),
        tuple(sentence for summary in summaries for sentence in summary.get("warnings", [])),
    )


def _filled(summary: Summary, tasks: int) -> tuple[str, ...]:
    """Return a run's row with a dash for each task that it has not come to."""
    cells = row(summary)
    missing = ["-"] * (tasks - len(summary["accuracy"]))
    return (*cells[:-LAST], *missing, *cells[-LAST:])


def _matrix(summary: Summary) -> Panel:
    matrix = summary["accuracy_matrix"]
    columns = ("", *(f"j = {task + 1}" for task in range(len(matrix))))
    empty = [""] * len(matrix)
    rows = [(f"i = {task + 1}", *(f"{value:.1f}" for value in values)) for task, values in enumerate(matrix)]
    return Panel(MATRIX, columns, tuple((*cells, *empty)[: len(columns)] for cells in rows))


def _label(summary: Summary) -> str:
    return f"{summary['method']} (average {figure(summary['average'])})"


def _facts(summary: Summary) -> str:
    delay = summary["detection"]["mean_delay"]
    transfer = summary["backward_transfer"]
    return (
        f"backward transfer {figure(transfer)}   mean delay of alarms "
        f"{'-' if delay is None else f'{delay:.1f} rounds'}   {summary['bytes_up'] / 1e6:.1f} MB up   "
        f"{summary['bytes_down'] / 1e6:.1f} MB down   {len(summary['failures'])} failures   {summary['seconds']:.0f} s"
    )
