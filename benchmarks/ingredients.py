"""Runs of a preset with other settings than its own: what a method gains from Mosaic's ingredients, and Mosaic's bound.

They are kept as results/PRESET/with/SETTINGS/METHOD-SEED.json, where SETTINGS is KEY=VALUE, or several with commas
between them, as `fcil compare PRESET --set KEY=VALUE --results results/PRESET/with/SETTINGS` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.versus import signed
from fcil.experiment.result_file import read_kept
from fcil.experiment.summary import Summary, average_of
from fcil.reporting.compare.tables import Runs, Spread
from fcil.reporting.significance import holm, p_cell, paired_p_value
from fcil.reporting.tables import markdown

FOLDER = "with"
OWN_CLASSES, HEAD_ROWS, OPTIMISER = "method.own_classes=true", "method.head_rows=holders", "method.optimiser=cosine"
TOGETHER = ",".join((OWN_CLASSES, HEAD_ROWS, OPTIMISER))
COLUMNS = {
    OWN_CLASSES: "own classes",
    HEAD_ROWS: "rows by holders",
    OPTIMISER: "optimiser",
    TOGETHER: "all three",
}
OFFERED = ("icarl", "bic", "dde", "glfc")
EVERYTHING = "scenario.memory=100000,method.distillation_weight=0"  # all samples stay, so nothing is to be distilled


def load(folder: Path) -> dict[str, dict[str, dict[int, Summary]]]:
    """Return a preset's runs with other settings: by those settings, by method and by seed."""
    found: dict[str, dict[str, dict[int, Summary]]] = {}
    for path in sorted((folder / FOLDER).glob("*/*-*.json")):
        summary = read_kept(path).summary
        found.setdefault(path.parent.name, {}).setdefault(summary["method"], {})[summary["seed"]] = summary
    return found


def gains(plain: Mapping[int, Summary], changed: Mapping[int, Summary]) -> list[float]:
    """Return by how many points of the average a change helped, for each seed that was run with and without it."""
    return [average_of(changed[seed]) - average_of(plain[seed]) for seed in sorted(plain.keys() & changed.keys())]


def table(plain: Runs, changed: Mapping[str, Runs], ours: str = "mosaic") -> str:
    """Return what each method gains from each ingredient and from all; and for comparison our own method.

    A method's averages are over the seeds with which it was run with any ingredient, so that gains add to them.
    """
    rows, p_values, everywhere = [], list[float | None](), set[int]()
    for method in OFFERED:
        runs = {change: changed.get(change, {}).get(method, {}) for change in COLUMNS}
        seeds = {seed for by_seed in runs.values() for seed in by_seed}
        if not seeds:
            continue
        everywhere |= seeds
        without = {seed: summary for seed, summary in plain[method].items() if seed in seeds}
        cells = [signed(gains(without, by_seed)) if by_seed else "" for by_seed in runs.values()]
        p_values.append(paired_p_value(gains(without, runs[TOGETHER])))
        rows.append([f"`{method}`", str(len(seeds)), average(without), *cells, average(runs[TOGETHER])])
    if not rows:
        return "No runs are stored yet."
    rows = [[*row, p_cell(p_value)] for row, p_value in zip(rows, holm(p_values), strict=True)]
    own = {seed: summary for seed, summary in plain.get(ours, {}).items() if seed in everywhere}
    rows.append([f"`{ours}`", str(len(own)), average(own), *[""] * len(COLUMNS), "", ""])
    return markdown(["method", "seeds", "as it is", *COLUMNS.values(), "with all three", "p (Holm)"], rows)


def average(runs: Mapping[int, Summary]) -> str:
    """Return mean and deviation of the averages of some runs, of none an empty cell."""
    return str(Spread.of([average_of(summary) for summary in runs.values()])) if runs else ""


def way(lower: Mapping[int, Summary], reached: Mapping[int, Summary], upper: Mapping[int, Summary]) -> float | None:
    """Return the share of the gap between two bounds that is closed, in percent, over the seeds that all three have.

    >>> def runs(*averages): return {seed: {"average": value} for seed, value in enumerate(averages)}
    >>> way(runs(20.0, 22.0), runs(34.0, 36.0, 99.0), runs(40.0, 42.0))  # 14 of 20 points
    70.0
    """
    seeds = lower.keys() & reached.keys() & upper.keys()
    if not seeds:
        return None
    low, here, high = (sum(average_of(runs[seed]) for seed in seeds) for runs in (lower, reached, upper))
    return 100 * (here - low) / (high - low)
