"""Number, mean and spread of values as sums that add up over sites, without the loss of digits of plain squares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Moments:
    """The number of values, their mean, and the sum of their squared differences from it."""

    count: int
    mean: float
    squares: float

    @property
    def deviation(self) -> float:
        """Return the standard deviation; of no values, or of equal ones, 0."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0


def moments(values: NDArray[np.floating]) -> Moments:
    """Return the moments of all values that are not NaN; the sums are rounded once, so every machine has the same.

    >>> import numpy as np
    >>> moments(np.array([1.0, 2.0, 3.0, np.nan]))
    Moments(count=3, mean=2.0, squares=2.0)
    """
    flat = values.astype(np.float64, copy=False).ravel()
    known = flat[~np.isnan(flat)]
    if not len(known):
        return Moments(0, 0.0, 0.0)
    mean = math.fsum(known) / len(known)
    return Moments(len(known), mean, math.fsum(np.square(known - mean)))


def pooled(parts: Sequence[Moments]) -> Moments:
    """Return the moments of all values together, given those of each part.

    >>> pooled([Moments(1, 1.0, 0.0), Moments(2, 2.5, 0.5)])
    Moments(count=3, mean=2.0, squares=2.0)
    """
    count = sum(part.count for part in parts)
    if not count:
        return Moments(0, 0.0, 0.0)
    mean = math.fsum(part.count * part.mean for part in parts) / count
    between = math.fsum(part.count * (part.mean - mean) ** 2 for part in parts)
    return Moments(count, mean, math.fsum(part.squares for part in parts) + between)
