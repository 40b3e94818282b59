"""Accuracy over the number of classes seen, of one run or of several, beside what the paper prints."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from fcil.results.facts import RunFacts
from fcil.results.page.figure import Figure, Trace, axes, look, plot
from fcil.results.page.html import Section, joined, note, table
from fcil.results.published import PublishedRow, published_row
from fcil.results.tables import defined_forgetting, figure

TITLE = "Accuracy over classes seen"


def accuracy_section(runs: Sequence[RunFacts]) -> Section:
    """Return the curves and their figures; runs of one method over several seeds make one curve with a band."""
    lead = "Share of right predictions on the test images of all classes seen so far, after each task."
    measured = [run for run in runs if run.summary["accuracy"]]
    if not measured:
        return Section("accuracy", TITLE, lead, note("No accuracy has been measured yet."))
    groups = _groups(measured)
    traces = [trace for place, (label, group) in enumerate(groups.items()) for trace in _curves(label, group, place)]
    papers = {name: paper for name, group in groups.items() if (paper := printed(group[0])) is not None}
    traces += [_printed(name, paper, list(groups).index(name)) for name, paper in papers.items()]
    ticks = sorted({number for run in measured for number in run.summary["classes_seen"]})
    layout = axes("classes seen", "accuracy (%)", yaxis={"range": [0, 103]}, xaxis=_ticks(ticks))
    drawing = plot("accuracy-curves", "curves of accuracy over classes seen", Figure(traces, layout, 400))
    rows = [_row(run) for run in measured]
    columns = ("run", "data", "average", "last", "forgetting", "backward transfer", "MB sent", "seconds")
    remarks = [note(f"As printed in the paper, {name}: {paper.slip}") for name, paper in papers.items() if paper.slip]
    return Section("accuracy", TITLE, lead, joined([drawing, table(columns, rows, "figures"), *remarks]))


def printed(run: RunFacts) -> PublishedRow | None:
    """Return the paper's row for the experiment of a run, where its tables have one with the same classes."""
    scenario, summary = run.table("scenario"), run.summary
    if run.kind == "server":
        return None
    row = published_row(run.source, len(summary["accuracy"]), summary["method"], scenario.get("memory", 0))
    return row if row is not None and row.classes == tuple(summary["classes_seen"]) else None


def _groups(runs: Sequence[RunFacts]) -> dict[str, list[RunFacts]]:
    """Return runs by method where several share its tasks, so that they can be averaged, else one by one."""
    found: dict[str, list[RunFacts]] = {}
    for run in runs:
        same = found.setdefault(run.method, [])
        if same and (_course(same[0]) != _course(run) or run.summary["seed"] in [one.summary["seed"] for one in same]):
            found[f"{run.method} ({run.name})"] = [run]
        else:
            same.append(run)
    return found


def _course(run: RunFacts) -> tuple[str, list[int]]:
    return run.source, run.summary["classes_seen"]


def _curves(label: str, group: list[RunFacts], place: int) -> list[Trace]:
    (colour, symbol, dashed), classes = look(place), group[0].summary["classes_seen"]
    columns = list(zip(*(run.summary["accuracy"] for run in group), strict=True))
    means = [statistics.mean(column) for column in columns]
    seeds = f" ({len(group)} seeds)" if len(group) > 1 else ""
    line: Trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": f"{label}{seeds}",
        "x": classes,
        "y": [round(mean, 2) for mean in means],
        "line": {"color": colour, "width": 3 if place == 0 else 2, "dash": "longdash" if dashed else "solid"},
        "marker": {"size": 7, "symbol": symbol},
        "hovertemplate": "%{x} classes: %{y:.1f} %<extra>%{fullData.name}</extra>",
    }
    if len(group) == 1:
        return [line]
    spread = [statistics.stdev(column) for column in columns]
    edge = [*zip(means, spread, strict=True)]
    band: Trace = {
        "type": "scatter",
        "mode": "lines",
        "fill": "toself",
        "x": [*classes, *reversed(classes)],
        "y": [round(m + s, 2) for m, s in edge] + [round(m - s, 2) for m, s in reversed(edge)],
        "line": {"width": 0},
        "fillcolor": f"{colour}26",
        "hoverinfo": "skip",
        "showlegend": False,
    }
    return [band, line]


def _printed(name: str, paper: PublishedRow, place: int) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"{name}, as printed in the paper",
        "x": list(paper.classes),
        "y": list(paper.accuracy),
        "line": {"color": look(place)[0], "dash": "dot", "width": 2},
    }


def _ticks(numbers: list[int]) -> dict[str, Any]:
    return {"tickvals": numbers} if len(numbers) <= 20 else {}


def _row(run: RunFacts) -> tuple[str, ...]:
    summary = run.summary
    transfer = summary["backward_transfer"] if len(summary["accuracy"]) > 1 else None
    sent = (summary["bytes_up"] + summary["bytes_down"]) / 1e6
    percents = (summary["average"], summary["last"], defined_forgetting(summary), transfer)
    return (run.label, run.source, *map(figure, percents), f"{sent:,.1f}", f"{summary['seconds']:,.0f}")
