"""Two measures of the differences between clients: in their mix of classes, and in their number of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fcil.data.scenario.holdings import ABSENT, HoldingsTable


@dataclass(frozen=True)
class Skew:
    """The differences between the clients that hold data of a task; both measures are None without any such client."""

    classes: float | None  # 0: the same mix of classes everywhere; near 1: no class in common
    sizes: float | None  # Gini coefficient; 0: equal numbers of samples; near 1: one client has them all


def task_skews(ledger: HoldingsTable) -> list[Skew]:
    """Return the skew of each task of a scenario."""
    found = []
    for place, task in enumerate(ledger.tasks):
        labels = [*task.classes, *task.late]
        rows = [row.holdings[place] for row in ledger.clients if row.holdings[place].group != ABSENT]
        counts = np.array([[row.samples.get(label, 0) for label in labels] for row in rows], dtype=np.float64)
        found.append(skew(counts.reshape(len(rows), len(labels))))
    return found


def skew(counts: NDArray[np.float64]) -> Skew:
    """Return the skew of a table (clients, classes) of numbers of samples."""
    held = counts[counts.sum(1) > 0]
    return Skew(class_skew(held), gini(held.sum(1).tolist())) if len(held) else Skew(None, None)


def class_skew(counts: NDArray[np.float64]) -> float:
    """Return the mean distance, in total variation, of a client's mix of classes from the mix of all samples."""
    mixes = counts / counts.sum(1, keepdims=True)
    return float(np.abs(mixes - counts.sum(0) / counts.sum()).sum(1).mean() / 2)


def gini(values: Sequence[float]) -> float:
    """Return the Gini coefficient: the mean difference of all pairs over twice the mean.

    >>> gini([1, 1]), gini([0, 2])
    (0.0, 0.5)
    """
    found = np.asarray(values, dtype=np.float64)
    return float(np.abs(found[:, None] - found[None, :]).mean() / (2 * found.mean()))
