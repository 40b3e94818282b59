"""Accuracy by class and the confusion matrix, both with a field to search for a class."""

from __future__ import annotations

from typing import Any

from fcil.federation.diagnostics import Confusion
from fcil.reporting.colours import PALETTE, shortened
from fcil.reporting.page.figure import MOST_WRITTEN, SCALE, Figure, axes, cells, plot, row_height
from fcil.reporting.page.html import Html, Section, joined, lacking, note, table, tag
from fcil.reporting.run_facts import RunFacts

TITLE = "Class by class"
LEAD = "Accuracy on the test images of each class in the last evaluation, and the classes they are taken for."
MOST_CELLS = 60_000  # of all confusion matrices on the page; of a larger run only the last one is shown


def classes_section(run: RunFacts, prefix: str) -> Section:
    """Return bars, a table and the confusion matrix of a run."""
    if not run.final_classes and not run.confusions:
        return Section("classes", TITLE, LEAD, lacking("figures by class", run.kind == "kept"), absent=True)
    search = tag(
        "label",
        "Find a class ",
        tag("input", type="search", class_="find", placeholder="name or id", autocomplete="off", data_in=prefix),
    )
    parts = [tag("p", search, tag("span", class_="found", role="status"))]
    parts += [_bars(run, prefix), _table(run, prefix)] if run.final_classes else []
    parts.append(_confusion(run, prefix))
    return Section("classes", TITLE, LEAD, joined(parts))


def called(run: RunFacts, identity: str) -> str:
    """Return the label of a class on the page: its name, or the first letters of a long id.

    A name that several classes share is told apart by its id.
    """
    names = run.class_names
    name = names.get(identity, identity if len(identity) <= 16 else f"{identity[:8]}…")
    return f"{name} [{identity}]" if list(names.values()).count(name) > 1 else name


def _bars(run: RunFacts, prefix: str) -> Html:
    found = run.final_classes
    names = [called(run, identity) for identity in found]
    bars = {
        "type": "bar",
        "x": names,
        "y": [round(100 * right / total, 1) for right, total in found.values()],
        "customdata": [f"{right} of {total}" for right, total in found.values()],
        "hovertemplate": "%{x}: %{y} % (%{customdata})<extra></extra>",
        "marker": {"color": PALETTE[0]},
        "meta": "classes",
    }
    layout = axes("", "accuracy (%)", yaxis={"range": [0, 103]}, xaxis={"type": "category", **shortened(names)})
    return plot(f"{prefix}-bars", "bars of accuracy by class", Figure([bars], layout, 300))


def _table(run: RunFacts, prefix: str) -> Html:
    wrong = _taken_for(run)
    columns = ("class", "accuracy (%)", "right", *(("most often taken for",) if wrong else ()))
    rows, keys = [], []
    for identity, (right, total) in run.final_classes.items():
        name = called(run, identity)
        told = (wrong.get(identity, ""),) if wrong else ()
        rows.append((name, f"{100 * right / total:.1f}", f"{right} of {total}", *told))
        keys.append(f"{name} {identity}".lower())
    return table(columns, rows, f"{prefix}-class-table", keys)


def _taken_for(run: RunFacts) -> dict[str, str]:
    """Return for each class the two others that its images are most often taken for."""
    if not run.confusions:
        return {}
    found = run.confusions[max(run.confusions)]
    counts: list[list[int]] = found.counts.tolist()
    told = {}
    for row, identity in enumerate(found.classes):
        others = sorted(((n, column) for column, n in enumerate(counts[row]) if n > 0 and column != row), reverse=True)
        told[identity] = ", ".join(f"{called(run, found.classes[column])} ({n})" for n, column in others[:2])
    return told


def _confusion(run: RunFacts, prefix: str) -> Html:
    if not run.confusions:
        why = "sites count their own images" if run.kind == "server" else "it was not kept"
        return note(f"This run has no confusion matrix: {why}.")
    numbers = sorted(run.confusions)
    size = sum(len(run.confusions[number].classes) ** 2 for number in numbers)
    shown = numbers if size <= MOST_CELLS else numbers[-1:]
    frames = [_frame(run, run.confusions[number]) for number in shown]
    gap = 1 if len(frames[-1]["x"]) <= MOST_WRITTEN else 0
    heat = {
        "type": "heatmap",
        **frames[-1],
        "zmin": 0,
        "zmax": 100,
        "colorscale": SCALE,
        "xgap": gap,
        "ygap": gap,
        "texttemplate": "%{z:.0f}" if gap else "",
        "hovertemplate": "%{y} taken for %{x}: %{z} % of its images<extra></extra>",
        "colorbar": {"title": {"text": "%"}, "thickness": 12},
        "meta": "confusion",
    }
    ticks = shortened(frames[-1]["x"])
    sides = {
        "xaxis": {"type": "category", **ticks},
        "yaxis": {"type": "category", "autorange": "reversed", **ticks},
    }
    layout = cells("taken for", "true class", **sides)
    height = row_height(len(frames[-1]["x"]), 720) + 60
    picture = plot(f"{prefix}-confusion", "heat map of the confusion matrix", Figure([heat], layout, height, frames))
    tasks = {record.round: record.task + 1 for record in run.records}
    options = [
        tag("option", f"after task {tasks.get(number, '?')}", value=str(place), selected=number == shown[-1])
        for place, number in enumerate(shown)
    ]
    choice = tag("label", "Confusion matrix ", tag("select", *options, class_="frame", data_for=f"{prefix}-confusion"))
    return joined([tag("h3", "Confusion"), tag("p", choice), picture])


def _frame(run: RunFacts, found: Confusion) -> dict[str, Any]:
    names = [called(run, identity) for identity in found.classes]
    counts: list[list[int]] = found.counts.tolist()
    shares = [[round(100 * n / max(sum(row), 1), 1) for n in row] for row in counts]
    return {"x": names, "y": names, "z": shares}
