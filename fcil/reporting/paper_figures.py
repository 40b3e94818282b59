"""The paper's figures from our runs: prototypes (figure 2), and accuracy over classes (figures 3 and 4)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from fcil.core.errors import ConfigError
from fcil.reporting.colours import MARKERS, Look, looks
from fcil.reporting.curves import OWN, Curve, ceiling, curves, task_count
from fcil.reporting.page.prototypes import as_picture, decibels
from fcil.reporting.run_facts import RunFacts

COLUMN, PAGE = 3.4, 7.0  # inches: the width of a column and of a page of two
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
        measured = [run for run in runs if run.summary["accuracy"]]
        for source in dict.fromkeys(run.source for run in measured):
            drawn[f"curves-{source}"] = _curves([run for run in measured if run.source == source])
        if not drawn:
            raise ConfigError("these runs have neither accuracy nor prototypes to draw yet; let them finish a task")
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
        grid[0, column].set_title(str(names.get(item.label, item.label)), parse_math=False)
        grid[2, column].set_xlabel(f"{decibels(item.to_perturbed)} dB")
    return figure


def _curves(runs: Sequence[RunFacts]) -> Figure:
    """Return figure 3 or 4: a panel for each number of tasks, a curve for each method, the mean over its seeds."""
    tasks = sorted({task_count(run) for run in runs})
    drawn = {number: curves([run for run in runs if task_count(run) == number]) for number in tasks}
    labels = {curve.label: curve.method for panel in drawn.values() for curve in panel}
    worn = looks(labels)
    several = len(tasks) > 1
    columns = 6 if several else 3
    height = 2.3 + 0.16 * -(-len(labels) // columns)
    figure = Figure(figsize=(PAGE if several else COLUMN, height), layout="constrained")
    panels = figure.subplots(1, len(tasks), squeeze=False, sharey=True)[0]
    for axes, (number, panel) in zip(panels, drawn.items(), strict=True):
        for curve in panel:
            _draw(axes, curve, worn[curve.label])
        axes.set(title=f"T = {number}", xlabel="number of classes")
        seen = sorted({count for curve in panel for count in curve.classes})
        axes.set_xticks(seen if len(seen) <= 10 else seen[1::2])
        axes.grid(alpha=0.3, linewidth=0.4)
    highest = ceiling([mean for panel in drawn.values() for curve in panel for mean in curve.means])
    panels[0].set(ylabel="accuracy (%)", ylim=(0, highest))
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=columns, frameon=False)
    return figure


def _draw(axes: Any, curve: Curve, worn: Look) -> None:
    own = curve.method == OWN
    axes.plot(
        curve.classes,
        curve.means,
        label=curve.label,
        color=worn.colour,
        marker=MARKERS[worn.marker],
        markersize=3,
        linestyle="--" if worn.dashed else "-",
        linewidth=1.6 if own else 1.0,
        zorder=3 if own else 2,
    )
    if curve.spread:
        axes.fill_between(curve.classes, *curve.band, color=worn.colour, alpha=0.15, linewidth=0)
