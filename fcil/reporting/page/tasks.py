"""The accuracy matrix as a heat map, and the forgetting of each task."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fcil.reporting.colours import PALETTE, Look, look
from fcil.reporting.curves import ceiling
from fcil.reporting.page.figure import (
    INK,
    MOST_WRITTEN,
    SCALE,
    WRONG,
    Figure,
    Trace,
    axes,
    cells,
    over_rounds,
    plot,
    rounds_of,
    row_height,
)
from fcil.reporting.page.html import Html, Section, joined, note, tag
from fcil.reporting.run_facts import RunFacts

TITLE = "Task by task"
LEAD = (
    "Accuracy (%) on the classes of each task, measured after each task, and how much of the best was lost by the end."
)


def tasks_section(run: RunFacts, prefix: str) -> Section:
    """Return the matrix and the forgetting of a run, and its accuracy round by round where that was measured."""
    if not run.summary["accuracy_matrix"]:
        return Section("tasks", TITLE, LEAD, note("No task has been measured yet."), absent=True)
    return Section(
        "tasks",
        TITLE,
        LEAD,
        joined([_matrix(run, prefix), *_forgetting(run, prefix), *_rounds(run, prefix), *_loss(run, prefix)]),
    )


def _matrix(run: RunFacts, prefix: str) -> Html:
    matrix = run.summary["accuracy_matrix"]
    width = len(matrix)
    names = _names(width)
    values = [value for row in matrix for value in row]
    lowest, highest = math.floor(min(values)), math.ceil(max(values))
    heat = {
        "type": "heatmap",
        "x": names,
        "y": [f"after {name}" for name in names],
        "z": [[round(value, 1) for value in row] + [None] * (width - len(row)) for row in matrix],
        "zmin": lowest,
        "zmax": max(highest, lowest + 1),
        "colorscale": SCALE,
        "hoverongaps": False,
        "xgap": 2,
        "ygap": 2,
        "texttemplate": "%{z:.1f}" if width <= MOST_WRITTEN else "",
        "hovertemplate": "%{y}, on %{x}: %{z} %<extra></extra>",
        "colorbar": {"title": {"text": "%"}, "thickness": 12},
    }
    layout = cells("", "", yaxis={"autorange": "reversed"})
    return plot(f"{prefix}-matrix", "heat map of the accuracy matrix", Figure([heat], layout, row_height(width) + 60))


def _forgetting(run: RunFacts, prefix: str) -> list[Html]:
    matrix = run.summary["accuracy_matrix"]
    width = len(matrix)
    if width == 1:
        return [note("Of one task nothing can be forgotten yet.")]
    names, final = _names(width), matrix[-1]
    best = [max(row[task] for row in matrix[task:-1]) for task in range(width - 1)]
    pairs = list(zip(best, final[:-1], strict=True))
    parts = {
        "kept at the end": (PALETTE[0], [min(high, end) for high, end in pairs]),
        "forgotten": (WRONG, [max(0.0, high - end) for high, end in pairs]),
        "gained at the end": (PALETTE[2], [max(0.0, end - high) for high, end in pairs]),
    }
    bars: list[Trace] = [
        {
            "type": "bar",
            "name": name,
            "x": names[:-1],
            "y": [round(value, 1) for value in values],
            "marker": {"color": colour},
            "hovertemplate": "%{x}: %{y} points<extra>%{fullData.name}</extra>",
        }
        for name, (colour, values) in parts.items()
        if any(values) or name != "gained at the end"
    ]
    stacked = axes("", "accuracy (%)", barmode="stack")
    drawing = plot(f"{prefix}-forgetting", "bars of forgetting per task", Figure(bars, stacked, 300))
    return [tag("h3", "Forgetting per task"), drawing]


def _rounds(run: RunFacts, prefix: str) -> list[Html]:
    """Return the accuracy after each round, of a run that was measured more often than at the ends of tasks."""
    measured = [record for record in run.records if record.total]
    if len(measured) <= len(run.summary["accuracy_matrix"]):
        return []
    tasks = [
        _line(
            f"task {task + 1}",
            [(one.round, one.correct[task], one.total[task]) for one in measured if task < len(one.total)],
            look(task),
        )
        for task in range(max(len(one.total) for one in measured))
    ]
    whole = [(one.round, sum(one.correct), sum(one.total)) for one in measured]
    traces = [*(tasks if 1 < len(tasks) <= MOST_WRITTEN else []), _line("all classes seen", whole)]
    highest = ceiling([value for trace in traces for value in trace["y"]])
    layout = over_rounds(run.records, "accuracy (%)", yaxis={"range": [0, highest]})
    drawing = plot(f"{prefix}-rounds", "curves of accuracy over the rounds", Figure(traces, layout, 320))
    return [tag("h3", "Round by round"), drawing]


def _loss(run: RunFacts, prefix: str) -> list[Html]:
    """Return the training loss after each round, the mean over the participants."""
    known = [record for record in run.records if record.loss is not None]
    if not known:
        return []
    trace: Trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "training loss",
        "x": rounds_of(known),
        "y": [record.loss for record in known],
        "line": {"color": PALETTE[0], "width": 2},
        "marker": {"size": 5},
        "hovertemplate": "round %{x}: %{y:.4g}<extra></extra>",
    }
    layout = over_rounds(run.records, "loss", yaxis={"rangemode": "tozero"})
    drawing = plot(f"{prefix}-loss", "curve of the training loss over the rounds", Figure([trace], layout, 280))
    return [tag("h3", "Training loss"), tag("p", "Mean over the participants of each round.", class_="lead"), drawing]


def _line(name: str, counts: Sequence[tuple[int, int, int]], worn: Look | None = None) -> Trace:
    """Return a curve by the round, the right predictions and all of them; without a look it is the main one."""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": [number for number, _, _ in counts],
        "y": [round(100 * right / total, 1) for _, right, total in counts],
        "line": {"color": worn.colour, "width": 1, "dash": "5px,3px" if worn.dashed else "solid"}
        if worn
        else {"color": INK, "width": 3},
        "marker": {"size": 5, "symbol": worn.marker if worn else 0},
        "hovertemplate": "round %{x}: %{y} %<extra>%{fullData.name}</extra>",
    }


def _names(tasks: int) -> list[str]:
    return [f"task {number + 1}" for number in range(tasks)]
