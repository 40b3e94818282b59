"""Curves of accuracy over classes seen, one per experiment over its seeds, for the page and the paper's figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fcil.reporting.run_facts import RunFacts

OWN = "glfc"  # the method that the others are compared with
WAYS = (("source",), ("tasks",), ("source", "tasks"), ("name",), ("source", "tasks", "name"))
APART = {"seed", "run", "description", "deployment"}  # settings that runs of one experiment may differ in


@dataclass(frozen=True)
class Curve:
    """The mean over the seeds of an experiment after each task, and the standard deviation where there are several."""

    label: str
    method: str
    runs: tuple[RunFacts, ...]
    classes: tuple[int, ...]
    means: tuple[float, ...]
    spread: tuple[float, ...] = ()

    @property
    def band(self) -> tuple[list[float], list[float]]:
        """Return the lower and the upper edge of the band around the means, within 0 and 100 %."""
        return band(self.means, self.spread)


def band(means: Sequence[float], deviations: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the edges of a band of one deviation around accuracies, which end at 0 and 100 %.

    >>> band([50.0, 99.0], [1.0, 2.0])
    ([49.0, 97.0], [51.0, 100.0])
    """
    pairs = list(zip(means, deviations, strict=True))
    return [max(0.0, mean - spread) for mean, spread in pairs], [min(100.0, mean + spread) for mean, spread in pairs]


def curves(runs: Sequence[RunFacts]) -> list[Curve]:
    """Return the curves of all runs that have an accuracy, in their order."""
    groups: list[list[RunFacts]] = []
    for run in runs:
        if not run.summary["accuracy"]:
            continue
        group = next((found for found in groups if _belongs(run, found)), None)
        if group is None:
            groups.append([run])
        else:
            group.append(run)
    return [_curve(group, label) for group, label in zip(groups, _labels([group[0] for group in groups]), strict=True)]


def task_count(run: RunFacts) -> int:
    """Return the number of tasks of a run; for a server, of those it has finished."""
    return run.planned_tasks or len(run.summary["accuracy"])


def ceiling(values: Sequence[float]) -> float:
    """Return where an axis of accuracies ends: above the highest, by tens.

    >>> ceiling([43.8, 12.0]), ceiling([97.2]), ceiling([])
    (52, 102, 103)
    """
    if not values:
        return 103
    return min(103, 10 * math.floor(max(values) / 10) + 12)


def _labels(runs: Sequence[RunFacts]) -> list[str]:
    """Return the name of each curve: its method, and its difference from other curves of the same method."""
    return [_label(run, [other for other in runs if other.method == run.method]) for run in runs]


def _label(run: RunFacts, alike: Sequence[RunFacts]) -> str:
    if len(alike) == 1:
        return run.method
    told = next((facts for facts in WAYS if len({_told(one, facts) for one in alike}) == len(alike)), WAYS[-1])
    return f"{run.method} ({_told(run, told)})"


def _told(run: RunFacts, facts: Sequence[str]) -> str:
    tasks = task_count(run)
    known = {"source": run.source, "tasks": f"{tasks} task{'' if tasks == 1 else 's'}", "name": run.name}
    return ", ".join(known[fact] for fact in facts)


def _curve(group: Sequence[RunFacts], label: str) -> Curve:
    first = group[0]
    columns = list(zip(*(run.summary["accuracy"] for run in group), strict=True))
    means = tuple(statistics.mean(column) for column in columns)
    spread = tuple(statistics.stdev(column) for column in columns) if len(group) > 1 else ()
    return Curve(label, first.method, tuple(group), tuple(first.summary["classes_seen"]), means, spread)


def _belongs(run: RunFacts, group: Sequence[RunFacts]) -> bool:
    """Say whether a run is another seed of an experiment; settings that only one of two versions knows do not count."""
    first = group[0]
    return (
        run.method == first.method
        and run.summary["classes_seen"] == first.summary["classes_seen"]
        and run.summary["seed"] not in [one.summary["seed"] for one in group]
        and _agree(_essence(run), _essence(first))
    )


def _essence(run: RunFacts) -> dict[str, Any]:
    essence = {key: value for key, value in run.config.items() if key not in APART}
    if isinstance(essence.get("data"), Mapping):  # where its files lie is not what they say
        essence["data"] = {key: value for key, value in essence["data"].items() if key != "path"}
    return essence


def _agree(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return all(_agree(one[key], other[key]) for key in one.keys() & other.keys())
    return bool(one == other)
