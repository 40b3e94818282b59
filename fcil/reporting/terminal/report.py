"""The short report on runs: tables, curves and remarks, as lines in a terminal, a Markdown page and a picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from fcil.experiment.summary import Summary, privacy_in_words
from fcil.reporting.colours import MARKERS, looks
from fcil.reporting.tables import figure, headings, markdown, row

ACCURACY = "accuracy (%) over all classes seen, after each task"
MATRIX = "accuracy (%) after task i (rows) on the classes of task j"
LAST = 3  # cells of a row after the tasks
REPORT_FILE, CURVES_FILE = "report.md", "curves.png"
PADDING = 2  # around a cell in a terminal


@dataclass(frozen=True)
class Panel:
    """A table with a heading; the first column is text, the others are figures."""

    heading: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class TaskCurve:
    """The accuracy of one run after each task."""

    label: str
    method: str
    accuracy: tuple[float, ...]


@dataclass(frozen=True)
class Overview:
    """The figures and remarks on some runs of one scenario."""

    title: str
    tables: tuple[Panel, ...]
    curves: tuple[TaskCurve, ...]
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
        tuple(TaskCurve(_label(summary), summary["method"], tuple(summary["accuracy"])) for summary in summaries),
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
    found = summary.get("calibration")
    calibrated = f"calibration error {figure(found['error'])}   " if found else ""
    guaranteed = f"{words}   " if (words := privacy_in_words(summary)) else ""
    return (
        f"{guaranteed}{calibrated}backward transfer {figure(transfer)}   mean delay of alarms "
        f"{'-' if delay is None else f'{delay:.1f} rounds'}   {summary['bytes_up'] / 1e6:.1f} MB up   "
        f"{summary['bytes_down'] / 1e6:.1f} MB down   {len(summary['failures'])} failures   {summary['seconds']:.0f} s"
    )


# --- for readers --------------------------------------------------------------------------------------------------


def as_markdown(report: Overview, folders: Sequence[Path]) -> str:
    """Return a page that shows the curves stored next to it; each run's files lie in its folder."""
    tables = [
        part
        for table in report.tables
        for part in (f"{table.heading[0].upper()}{table.heading[1:]}:", markdown(table.columns, table.rows))
    ]
    facts = [
        f"- `{folder.name}/`: {fact.replace('   ', ', ')}" for fact, folder in zip(report.facts, folders, strict=True)
    ]
    warnings = [f"Warning: {sentence}" for sentence in report.warnings]
    picture = f"![accuracy after each task]({CURVES_FILE})"
    return "\n\n".join([f"# {report.title}", *tables, picture, "\n".join(facts), *warnings]) + "\n"


def print_report(console: Console, report: Overview) -> None:
    """Print the tables, the facts and the warnings."""
    for number, panel in enumerate(report.tables):
        console.print(f"{report.title}: {panel.heading}" if number == 0 else panel.heading, soft_wrap=True)
        print_panel(console, panel)
    for fact in report.facts if len(report.facts) == 1 else ():
        console.print(fact)
    for sentence in report.warnings:
        console.print(f"warning: {sentence}", style="yellow", soft_wrap=True)


def print_panel(console: Console, panel: Panel, leading: int = 1) -> None:
    """Print a table; one that is wider than the screen in pieces, each with the leading columns before it."""
    for places in fitting(panel, console.width, leading):
        table = Table(box=None)
        for place in places:
            table.add_column(panel.columns[place], justify="left" if place < leading else "right", no_wrap=True)
        for cells in panel.rows:
            table.add_row(*(cells[place] for place in places))
        console.print(table)


def fitting(panel: Panel, width: int, leading: int = 1) -> list[list[int]]:
    """Return the columns of a table in groups that are at most so wide, each with the leading columns before it."""
    lengths = [PADDING + max(map(cell_len, cells)) for cells in zip(panel.columns, *panel.rows, strict=True)]
    groups = [[*range(leading)]]
    for position in range(leading, len(lengths)):
        if len(groups[-1]) > leading and sum(lengths[one] for one in (*groups[-1], position)) > width:
            groups.append([*range(leading)])
        groups[-1].append(position)
    return groups


def curves_png(report: Overview) -> bytes:
    """Return a picture of the accuracy after each task, one curve per run."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (takes a second to import, so only when a picture is drawn)
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    figure = Figure(figsize=(6.4, 4.0), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    worn = looks({curve.label: curve.method for curve in report.curves})
    for curve in report.curves:
        look = worn[curve.label]
        style = {"color": look.colour, "marker": MARKERS[look.marker], "linestyle": "--" if look.dashed else "-"}
        axes.plot(range(1, len(curve.accuracy) + 1), curve.accuracy, label=curve.label, **style)  # type: ignore[arg-type]
    axes.set(xlabel="tasks learned", ylabel="accuracy on all classes seen (%)", ylim=(0, 103))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
