"""One method against another over the values of a setting: how far it is ahead, and on which classes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fcil.experiment.summary import Summary, average_of
from fcil.reporting.compare.tables import Spread
from fcil.reporting.significance import holm, p_cell, paired_p_value
from fcil.reporting.tables import markdown

BySeed = Mapping[int, Summary]


@dataclass(frozen=True)
class Duel:
    """Two methods at one value of a setting, over the seeds that both have; differences are first minus second."""

    value: str
    seeds: tuple[int, ...]
    averages: tuple[Spread, Spread]
    difference: tuple[float, ...]  # of the averages over tasks, for each seed
    old: tuple[float, ...]  # of the accuracy at the end on all classes but the newest task's
    new: tuple[float, ...]  # the same on the newest task's


def duel(value: str, first: BySeed, second: BySeed) -> Duel | None:
    """Return two methods at a value, or None where they have no seed in common."""
    seeds = tuple(sorted(first.keys() & second.keys()))
    if not seeds:
        return None
    averages = [[average_of(runs[seed]) for seed in seeds] for runs in (first, second)]
    ends = [[at_the_end(runs[seed]) for seed in seeds] for runs in (first, second)]
    old, new = ([a[part] - b[part] for a, b in zip(*ends, strict=True)] for part in (0, 1))
    gaps = [a - b for a, b in zip(*averages, strict=True)]
    return Duel(value, seeds, (Spread.of(averages[0]), Spread.of(averages[1])), tuple(gaps), tuple(old), tuple(new))


def at_the_end(summary: Summary) -> tuple[float, float]:
    """Return the accuracy after the last task on the classes of all tasks before it, and on its own.

    >>> at_the_end({"accuracy_matrix": [[90.0], [80.0, 70.0], [10.0, 40.0, 60.0]], "classes_seen": [4, 8, 10]})
    (25.0, 60.0)
    """
    sizes = [end - begin for begin, end in pairwise([0, *summary["classes_seen"]])]
    *old, new = summary["accuracy_matrix"][-1]
    return sum(size * found for size, found in zip(sizes, old, strict=False)) / sum(sizes[:-1]), new


def table(duels: Sequence[Duel], setting: str, names: tuple[str, str]) -> str:
    """Return the duels as a Markdown table."""
    rows = []
    corrected = holm([paired_p_value(found.difference) for found in duels])
    for found, p_value in zip(duels, corrected, strict=True):
        rows.append(
            [
                found.value,
                str(len(found.seeds)),
                *map(str, found.averages),
                *(signed(values) for values in (found.difference, found.old, found.new)),
                p_cell(p_value),
            ]
        )
    columns = [f"`{setting}`", "seeds", *names, f"{names[0]} minus {names[1]}", "on old classes at the end"]
    return markdown([*columns, "on the newest", "p (Holm)"], rows)


def signed(values: Sequence[float]) -> str:
    """Return mean and deviation of differences.

    >>> signed([1.0, 3.0]), signed([-2.0])
    ('+2.0 ±1.4', '-2.0')
    """
    spread = Spread.of(values)
    return f"+{spread}" if spread.mean >= 0 else str(spread)


def picture(duels: Sequence[Duel], setting: str, names: tuple[str, str]) -> bytes:
    """Return the differences over the values as SVG: a dot for each seed, a line through the means."""
    import matplotlib as mpl  # noqa: PLC0415 (takes a second to import, so only when a picture is drawn)
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(6.4, 3.8), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(0, color="black", linewidth=0.8)
    series = (
        ("average over all tasks", "difference", "black", "o", 2.2),
        ("old classes at the end", "old", "#0072b2", "s", 1.2),
        ("newest classes at the end", "new", "#d55e00", "^", 1.2),
    )
    for shift, (label, part, color, marker, width) in zip((0.06, -0.06, 0.06), series, strict=True):
        found = [getattr(one, part) for one in duels]
        means = [Spread.of(values).mean for values in found]
        axes.plot(range(len(duels)), means, color=color, marker=marker, linewidth=width, markersize=5, label=label)
        for place, values in enumerate(found):
            axes.plot([place + shift] * len(values), values, color=color, marker=marker, markersize=2.5, linestyle="")
    axes.set_xticks(range(len(duels)), [one.value for one in duels])
    axes.set(xlabel=setting, ylabel=f"{names[0]} minus {names[1]} (points)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "fcil"}):  # equal figures are equal files
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
