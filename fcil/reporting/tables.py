"""Rows for people: a run's summary as one line of a table, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from fcil.experiment.summary import Summary


def headings(tasks: int) -> list[str]:
    """Return the columns of a comparison over `tasks` tasks."""
    return ["method", *(f"task {task + 1}" for task in range(tasks)), "average", "forgetting", "hits / misses / false"]


def figure(value: float | None) -> str:
    """Return a figure with one decimal place, or a dash where it is not defined.

    >>> figure(12.34), figure(None)
    ('12.3', '-')
    """
    return "-" if value is None else f"{value:.1f}"


def row(summary: Summary) -> list[str]:
    """Return a run's row: accuracy after each task, its average, forgetting, and how alarms met arrivals."""
    found = summary["detection"]
    return [
        summary["method"],
        *(f"{value:.1f}" for value in summary["accuracy"]),
        figure(summary["average"]),
        figure(summary["forgetting"]),
        f"{found['hits']} / {found['misses']} / {found['false_alarms']}",
    ]


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table.

    >>> print(markdown(["method", "average"], [["glfc", "70.0"]]))
    | method | average |
    |---|---|
    | glfc | 70.0 |
    """
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(
        "|" + "|".join(cells) + "|" if cells[0] == "---" else "| " + " | ".join(cells) + " |" for cells in lines
    )


def settings_page(rows: Sequence[tuple[str, str, str]]) -> str:
    """Return the site's page of settings: each with its default and its description."""
    body = [(f"`{key}`", f"`{default}`", what) for key, default, what in rows]
    head = (
        "Printed by `fcil list settings --markdown`. A TOML file holds them as tables; `--set key=value` changes one.\n"
        'A file may begin with `extends = "NAME"`, a preset or the path of another file (relative), and takes\n'
        "all that it does not set itself from there: tables are merged, lists and values replaced.\n"
        'Such a file may take keys back to their defaults with `unset = ["scenario.joins", "method.glfc"]`.'
    )
    return f"# All settings\n\n{head}\n\n{markdown(['key', 'default', 'what it is'], body)}\n"
