"""The figures of `benchmarks.poison`: cells, verdicts against the bounds, and the page beside the kept rows."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fcil.reporting.tables import markdown

LOST = {"glfc": 5.0, "mosaic": 3.0}  # points below the same method's clean mean, at most, under every attack
COST, TURNED = 1.0, 10.0  # points below the mean without an attack, and percent of images that a backdoor turns
CALM = ("none", "silent")  # no attack, and the ceiling of leaving hostile clients out
Rows = Sequence[dict[str, Any]]
Cells = dict[tuple[str, str, str], list[dict[str, Any]]]  # by method, aggregator and attack
TITLE = """# Hostile clients

Ten clients with images of their own, two of them hostile. `python -m benchmarks.poison` makes the runs, the lines of
the `.jsonl` files here, and writes this page.
[docs/choose.md](../../docs/choose.md#sites-that-may-be-hostile) draws the conclusions.

A cell is the accuracy after the last task in percent, as the mean over the seeds with its standard deviation. In
brackets is the share of test images that a backdoor's patch turns into its class; `stops` is a run that ended with an
error. Under `silent` the hostile clients send nothing: the ceiling of an aggregator that leaves out them and nobody
else."""
VERDICT = """Points below the same method's `mean` without an attack: without one (cost) and under the worst one; and a
backdoor's success in percent. The bounds are {cost:g} for the cost, {lost} under every attack, and {turned:g} %."""


def cells(rows: Iterable[dict[str, Any]], seeds: Sequence[int]) -> Cells:
    """Return the runs of these seeds by method, aggregator and attack."""
    found: Cells = {}
    for row in rows:
        if row["seed"] in seeds:
            found.setdefault((row["method"], row["aggregator"], row["attack"]), []).append(row)
    return found


def figure(runs: Rows, key: str = "accuracy") -> tuple[float, float] | None:
    """Return the mean and the deviation of a figure; a run that stopped has an accuracy of 0."""
    if key == "accuracy":
        values = [row[key] or 0.0 for row in runs]
    else:
        values = [row[key] for row in runs if row.get(key) is not None]
    if not values:
        return None
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def verdicts(found: Cells) -> list[dict[str, Any]]:
    """Return, for each method and aggregator with a clean mean to compare, its figures and whether the bounds hold.

    A figure and the clean mean that it is compared with are of the same seeds.
    """
    lines = []
    for method, aggregator in _pairs(found):
        reference = found.get((method, "mean", "none"))
        clean = found.get((method, aggregator, "none"))
        if reference is None or clean is None:
            continue
        known = {row["seed"] for row in reference}
        if known.isdisjoint(row["seed"] for row in clean):
            continue
        attacked = {
            attack: round(_below(reference, runs), 2)
            for attack, runs in _attacks(found, method, aggregator)
            if not known.isdisjoint(row["seed"] for row in runs)
        }
        lines.append(_verdict(method, aggregator, found, round(_below(reference, clean), 2), attacked))
    return lines


def _pairs(found: Cells) -> Iterable[tuple[str, str]]:
    return dict.fromkeys((method, aggregator) for method, aggregator, _ in found)


def _attacks(found: Cells, method: str, aggregator: str) -> Iterator[tuple[str, Rows]]:
    """Yield the attacks that were tried, with their runs."""
    for (of, by, attack), runs in found.items():
        if (of, by) == (method, aggregator) and attack not in CALM:
            yield attack, runs


def _below(reference: Rows, runs: Rows) -> float:
    """Return by how many points runs are below others, over the seeds that both have."""
    clean = {row["seed"]: row["accuracy"] or 0.0 for row in reference}
    return statistics.mean(clean[row["seed"]] - (row["accuracy"] or 0.0) for row in runs if row["seed"] in clean)


def _verdict(method: str, aggregator: str, found: Cells, cost: float, attacked: Mapping[str, float]) -> dict[str, Any]:
    turned = figure(found.get((method, aggregator, "backdoor"), ()), "backdoor")
    bound = LOST.get(method, max(LOST.values()))
    return {
        "method": method,
        "aggregator": aggregator,
        "seeds": len(found[method, aggregator, "none"]),
        "cost": cost,
        "lost": dict(attacked),
        "backdoor": None if turned is None else round(turned[0], 1),
        "missed": [attack for attack, points in attacked.items() if points > bound]
        + ["backdoor success"] * (turned is not None and turned[0] > TURNED)
        + ["cost"] * (cost > COST),
    }


def table(found: Cells, attacks: Iterable[str]) -> str:
    """Return the cells as Markdown: accuracy with its deviation, and a backdoor's success in brackets."""
    shown = [name for name in attacks if any(attack == name for _, _, attack in found)]
    rows = [
        [f"{method}, `{aggregator}`", *(_cell(found.get((method, aggregator, attack), [])) for attack in shown)]
        for method, aggregator in _pairs(found)
    ]
    return markdown(["method", *shown], rows)


def _cell(runs: Rows) -> str:
    found, turned = figure(runs), figure(runs, "backdoor")
    if found is None:
        return ""
    stopped = sum(row["accuracy"] is None for row in runs)
    text = f"{found[0]:.1f} ±{found[1]:.1f}" if stopped < len(runs) else "stops"
    return f"{text} ({turned[0]:.0f})" if turned is not None else text


def verdict_table(lines: Rows) -> str:
    """Return the verdicts as Markdown; `-` is a figure that no run has."""
    rows = []
    for line in lines:
        worst = max(line["lost"], key=line["lost"].__getitem__, default=None)
        lost = "-" if worst is None else f"{line['lost'][worst]:.1f} ({worst})"
        turned = "-" if line["backdoor"] is None else f"{line['backdoor']:.0f}"
        missed = ", ".join(line["missed"]) or ("none" if line["lost"] else "not attacked")
        name = f"{line['method']}, `{line['aggregator']}`"
        rows.append([name, str(line["seeds"]), f"{line['cost']:.1f}", lost, turned, missed])
    return markdown(["method", "seeds", "cost", "worst attack", "backdoor", "bounds missed"], rows)


def page(experiments: Mapping[str, Cells], attacks: Iterable[str]) -> str:
    """Return the page of all experiments that have runs."""
    lost = " and ".join(f"{points:g} for {method}" for method, points in sorted(LOST.items()))
    parts = [TITLE]
    for experiment, found in experiments.items():
        rows = [row for runs in found.values() for row in runs]
        seeds, machines = sorted({row["seed"] for row in rows}), sorted({row["machine"] for row in rows})
        parts += [
            f"## {experiment}",
            f"{len(rows)} runs with the seeds {', '.join(map(str, seeds))} on {'; '.join(machines)}.",
            table(found, attacks),
            VERDICT.format(cost=COST, lost=lost, turned=TURNED),
            verdict_table(verdicts(found)),
        ]
    return "\n\n".join(parts) + "\n"
