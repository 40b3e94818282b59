"""A report as people see it: a Markdown page, lines in a terminal, or a picture of its curves."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from fcil.reporting.tables import markdown
from fcil.reporting.terminal.report import Overview, Panel

REPORT_FILE, CURVES_FILE = "report.md", "curves.png"
PADDING = 2  # around a cell in a terminal


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
    for curve, marker in zip(report.curves, "osD^v*Px" * len(report.curves), strict=False):
        axes.plot(range(1, len(curve.accuracy) + 1), curve.accuracy, marker=marker, label=curve.label)
    axes.set(xlabel="tasks learned", ylabel="accuracy on all classes seen (%)", ylim=(0, 103))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
