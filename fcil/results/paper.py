"""The paper's figures from our runs: prototypes (figure 2), and accuracy over classes (figures 3 and 4)."""

from __future__ import annotations

import io
import statistics
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from fcil.errors import ConfigError
from fcil.results.facts import RunFacts
from fcil.results.page.figure import look
from fcil.results.page.prototypes import as_picture, decibels

COLUMN, PAGE = 3.4, 7.0  # inches: the width of a column and of a page of two
MARKERS = "osD^vP*X"
MOST_PROTOTYPES = 6
STYLE: Any = {  # matplotlib names each key in the type
    "font.family": "serif",
    "font.serif": ["Times New Roman", "Times", "Nimbus Roman", "STIXGeneral", "DejaVu Serif"],
    "mathtext.fontset": "stix",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "svg.hashsalt": "fcil",  # equal figures are equal files
}


def paper_figures(runs: Sequence[RunFacts]) -> dict[str, bytes]:
    """Return the figures that some runs allow for, by file name."""
    drawn: dict[str, Figure] = {}
    with mpl.rc_context(STYLE):
        shown = next((run for run in runs if run.prototypes), None)
        if shown is not None:
            drawn["prototypes"] = _prototypes(shown)
        for source in dict.fromkeys(run.source for run in runs if run.summary["accuracy"]):
            drawn[f"curves-{source}"] = _curves([run for run in runs if run.source == source])
        if not drawn:
            raise ConfigError("these runs have neither accuracy nor prototypes to draw yet; let them play a task")
        return {f"{name}.{form}": _saved(figure, form) for name, figure in drawn.items() for form in ("png", "svg")}


def _saved(figure: Figure, form: str) -> bytes:
    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"Software": None} if form == "png" else {"Date": None}
    figure.savefig(buffer, format=form, dpi=300, metadata=metadata)
    return buffer.getvalue()


def _prototypes(run: RunFacts) -> Figure:
    """Return figure 2: a column per prototype, original above perturbed above rebuilt."""
    items = [item for _, found in sorted(run.prototypes.items()) for item in found.items][:MOST_PROTOTYPES]
    names = run.class_names
    figure = Figure(figsize=(COLUMN, 3 * COLUMN / max(len(items), 3) + 0.35), layout="constrained")
    grid = figure.subplots(3, len(items), squeeze=False)
    for column, item in enumerate(items):
        pictures = {"original": item.original, "perturbed": item.perturbed, "rebuilt": item.rebuilt}
        for row, (what, image) in enumerate(pictures.items()):
            axes = grid[row, column]
            axes.imshow(as_picture(image), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            axes.set(xticks=[], yticks=[], ylabel=what if column == 0 else "")
        grid[0, column].set_title(names.get(item.label, item.label))
        grid[2, column].set_xlabel(f"{decibels(item.to_perturbed)} dB")
    return figure


def _curves(runs: Sequence[RunFacts]) -> Figure:
    """Return figure 3 or 4: a panel for each number of tasks, a curve for each method, the mean over its seeds."""
    tasks = sorted({len(run.summary["accuracy"]) for run in runs if run.summary["accuracy"]})
    methods = list(dict.fromkeys(run.method for run in runs))
    looks = {method: look(place) for place, method in enumerate(methods)}
    width = PAGE if len(tasks) > 1 else COLUMN
    rows = -(-len(methods) // (6 if len(tasks) > 1 else 3))
    figure = Figure(figsize=(width, 2.3 + 0.16 * rows), layout="constrained")
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    for axes, number in zip(panels, tasks, strict=True):
        some = [run for run in runs if len(run.summary["accuracy"]) == number]
        for method, same in _by_course(some).items():
            _curve(axes, method, same, looks[method[0]])
        axes.set(title=f"T = {number}", xlabel="number of classes", ylim=(0, 102))
        seen = sorted({count for run in some for count in run.summary["classes_seen"]})
        axes.set_xticks(seen if len(seen) <= 10 else seen[1::2])
        axes.grid(alpha=0.3, linewidth=0.4)
    panels[0].set_ylabel("accuracy (%)")
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    columns = 6 if len(tasks) > 1 else 3
    figure.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=columns, frameon=False)
    return figure


def _by_course(runs: Sequence[RunFacts]) -> dict[tuple[str, tuple[int, ...]], list[RunFacts]]:
    """Return runs by method and by the classes that they had seen after each task."""
    found: dict[tuple[str, tuple[int, ...]], list[RunFacts]] = {}
    for run in runs:
        found.setdefault((run.method, tuple(run.summary["classes_seen"])), []).append(run)
    return found


def _curve(
    axes: Any, key: tuple[str, tuple[int, ...]], runs: Sequence[RunFacts], own_look: tuple[str, int, bool]
) -> None:
    (method, classes), (colour, marker, dashed) = key, own_look
    columns = list(zip(*(run.summary["accuracy"] for run in runs), strict=True))
    means = [statistics.mean(column) for column in columns]
    own = method == "glfc"
    axes.plot(
        classes,
        means,
        label=method,
        color=colour,
        marker=MARKERS[marker],
        markersize=3,
        linestyle="--" if dashed else "-",
        linewidth=1.6 if own else 1.0,
        zorder=3 if own else 2,
    )
    if len(runs) > 1:
        spread = [statistics.stdev(column) for column in columns]
        low, high = ([m + sign * s for m, s in zip(means, spread, strict=True)] for sign in (-1, 1))
        axes.fill_between(classes, low, high, color=colour, alpha=0.15, linewidth=0)
