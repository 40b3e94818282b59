"""The accuracy matrix as a heat map, and what was forgotten of each task."""

from __future__ import annotations

from fcil.results.facts import RunFacts
from fcil.results.page.figure import PALETTE, SCALE, WRONG, Figure, Trace, axes, plot, row_height
from fcil.results.page.html import Section, joined, note, tag

TITLE = "Task by task"
LEAD = (
    "Accuracy (%) on the classes of each task, measured after each task, and how much of the best was lost by the end."
)
MOST_WRITTEN = 12  # tasks up to which the cells have room for their figures


def tasks_section(run: RunFacts, prefix: str) -> Section:
    """Return the matrix and the forgetting of a run."""
    matrix = run.summary["accuracy_matrix"]
    if not matrix:
        return Section("tasks", TITLE, LEAD, note("No task has been measured yet."))
    width = len(matrix)
    names = [f"task {number + 1}" for number in range(width)]
    cells = [[round(value, 1) for value in row] + [None] * (width - len(row)) for row in matrix]
    heat = {
        "type": "heatmap",
        "x": names,
        "y": [f"after {name}" for name in names],
        "z": cells,
        "zmin": 0,
        "zmax": 100,
        "colorscale": SCALE,
        "hoverongaps": False,
        "xgap": 2,
        "ygap": 2,
        "texttemplate": "%{z}" if width <= MOST_WRITTEN else "",
        "hovertemplate": "%{y}, on %{x}: %{z} %<extra></extra>",
        "colorbar": {"title": {"text": "%"}, "thickness": 12},
    }
    layout = axes("", "", yaxis={"autorange": "reversed"})
    picture = plot(
        f"{prefix}-matrix", "heat map of the accuracy matrix", Figure([heat], layout, row_height(width) + 60)
    )
    if width == 1:
        return Section("tasks", TITLE, LEAD, joined([picture, note("Of one task nothing can be forgotten yet.")]))
    final = matrix[-1]
    best = [max(row[task] for row in matrix[task:-1]) for task in range(width - 1)]
    lost = [round(high - end, 1) for high, end in zip(best, final[:-1], strict=True)]
    bars: list[Trace] = [
        {"type": "bar", "name": "kept at the end", "x": names[:-1], "y": [round(value, 1) for value in final[:-1]]},
        {"type": "bar", "name": "forgotten", "x": names[:-1], "y": lost},
    ]
    for trace, colour in zip(bars, (PALETTE[0], WRONG), strict=True):
        trace["marker"] = {"color": colour}
        trace["hovertemplate"] = "%{x}: %{y} points<extra>%{fullData.name}</extra>"
    stacked = axes("", "accuracy (%)", barmode="relative")
    forgetting = plot(f"{prefix}-forgetting", "bars of forgetting per task", Figure(bars, stacked, 300))
    return Section("tasks", TITLE, LEAD, joined([picture, tag("h3", "Forgetting per task"), forgetting]))
