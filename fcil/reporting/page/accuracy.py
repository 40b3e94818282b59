"""Accuracy over the number of classes seen, for one run or several, with the published figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fcil.reporting.colours import Look, looks
from fcil.reporting.curves import OWN, Curve, ceiling, curves
from fcil.reporting.page.figure import Figure, Trace, axes, plot
from fcil.reporting.page.html import Section, joined, note, table
from fcil.reporting.published import PublishedRow, published_row
from fcil.reporting.run_facts import RunFacts
from fcil.reporting.tables import figure

TITLE = "Accuracy over classes seen"
CALIBRATION = ("calibration error", "AUC of unknown classes")


def accuracy_section(runs: Sequence[RunFacts]) -> Section:
    """Return the curves and their figures; runs of one method over several seeds make one curve with a band."""
    lead = "Share of right predictions on the test images of all classes seen so far, after each task."
    measured = [run for run in runs if run.summary["accuracy"]]
    if not measured:
        return Section("accuracy", TITLE, lead, note("No accuracy has been measured yet."))
    drawn = curves(measured)
    worn = looks({curve.label: curve.method for curve in drawn})
    traces = [trace for curve in drawn for trace in _traces(curve, worn[curve.label])]
    papers = {curve.label: paper for curve in drawn if (paper := printed(curve.runs[0])) is not None}
    traces += [_printed(label, paper, worn[label].colour) for label, paper in papers.items()]
    ticks = sorted({number for run in measured for number in run.summary["classes_seen"]})
    highest = ceiling([value for trace in traces for value in trace["y"]])
    layout = axes("classes seen", "accuracy (%)", yaxis={"range": [0, highest]}, xaxis=_ticks(ticks))
    drawing = plot("accuracy-curves", "curves of accuracy over classes seen", Figure(traces, layout, 400))
    labels = Counter(run.label for run in measured)
    rows = [_row(run, f"{run.label} ({run.name})" if labels[run.label] > 1 else run.label) for run in measured]
    columns = ("run", "data", "average", "last", "forgetting", "backward transfer", *CALIBRATION, "MB sent", "seconds")
    remarks = [note(f"As printed in the paper, {label}: {paper.slip}") for label, paper in papers.items() if paper.slip]
    return Section("accuracy", TITLE, lead, joined([drawing, table(columns, rows, "figures"), *remarks]))


def printed(run: RunFacts) -> PublishedRow | None:
    """Return the paper's row for the experiment of a run, where its tables have one with the same classes.

    Of a run under way the classes so far have to be the same.
    """
    seen, memory = tuple(run.summary["classes_seen"]), run.table("scenario").get("memory", 0)
    if run.kind == "server":
        return None
    row = published_row(run.source, run.planned_tasks or len(seen), run.summary["method"], memory)
    return row if row is not None and row.classes[: len(seen)] == seen else None


def _traces(curve: Curve, worn: Look) -> list[Trace]:
    classes = list(curve.classes)
    seeds = f" ({len(curve.runs)} seeds)" if len(curve.runs) > 1 else ""
    line: Trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": f"{curve.label}{seeds}",
        "x": classes,
        "y": [round(mean, 2) for mean in curve.means],
        "line": {
            "color": worn.colour,
            "width": 3 if curve.method == OWN else 2,
            "dash": "5px,3px" if worn.dashed else "solid",
        },
        "marker": {"size": 7, "symbol": worn.marker},
        "hovertemplate": "%{x} classes: %{y:.1f} %<extra>%{fullData.name}</extra>",
    }
    if not curve.spread:
        return [line]
    low, high = curve.band
    band: Trace = {
        "type": "scatter",
        "mode": "lines",
        "fill": "toself",
        "x": [*classes, *reversed(classes)],
        "y": [round(value, 2) for value in (*high, *reversed(low))],
        "line": {"width": 0},
        "fillcolor": f"{worn.colour}26",
        "hoverinfo": "skip",
        "showlegend": False,
    }
    return [band, line]


def _printed(name: str, paper: PublishedRow, colour: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"{name}, as printed in the paper",
        "x": list(paper.classes),
        "y": list(paper.accuracy),
        "line": {"color": colour, "dash": "dot", "width": 2},
    }


def _ticks(numbers: list[int]) -> dict[str, Any]:
    return {"tickvals": numbers} if len(numbers) <= 20 else {}


def _row(run: RunFacts, label: str) -> tuple[str, ...]:
    summary = run.summary
    transfer = summary["backward_transfer"]
    sent = (summary["bytes_up"] + summary["bytes_down"]) / 1e6
    percents = (summary["average"], summary["last"], summary["forgetting"], transfer)
    found = summary.get("calibration")
    calibrated = (found["error"], found.get("unknown")) if found else (None, None)
    return (label, run.data, *map(figure, (*percents, *calibrated)), f"{sent:,.1f}", f"{summary['seconds']:,.0f}")
