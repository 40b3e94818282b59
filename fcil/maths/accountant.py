"""The accountant of noisy training: Opacus' PRV accountant of the subsampled Gaussian mechanism, never one of our own.

A step takes every sample with a probability (`rate`), bounds what each one adds, and adds Gaussian noise of so many
bounds (`noise`). Neighbouring data sets differ by one sample that is added or removed.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from fcil.core.errors import ConfigError

if TYPE_CHECKING:
    from opacus.accountants import PRVAccountant

GRAIN = 2**14  # noise is a multiple of one over this
LEAST, MOST, NEAR = 0.25, 1e5, 1.005  # noise that is looked for, and how close to the least
Uses = tuple["NoisySteps", ...]


@dataclass(frozen=True)
class NoisySteps:
    """A number of equal steps."""

    noise: float  # deviation of each number, in units of the bound of a sample
    rate: float  # probability of a sample to take part in a step
    steps: int


@lru_cache(4096)
def spent(uses: Uses, delta: float) -> float:
    """Return an upper bound of the epsilon of a sample that all these steps may have used."""
    if not uses:
        return 0.0
    accountant = _accountant()
    accountant.history = [(one.noise, one.rate, one.steps) for one in uses]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of logarithms of zero, where a probability is
        return float(accountant.get_epsilon(delta))


@lru_cache(256)
def noise_for(epsilon: float, delta: float, plan: Uses) -> float:
    """Return noise that keeps steps of these rates within epsilon, at most half a percent more than the least."""

    def holds(noise: float) -> bool:
        return spent(tuple(replace(one, noise=noise) for one in plan), delta) <= epsilon

    high = 1.0
    while not holds(high):
        high *= 2
        if high > MOST:
            steps = sum(one.steps for one in plan)
            raise ConfigError(
                f"privacy.epsilon: found {epsilon:g}, which no noise keeps over {steps} steps; raise it, or train less"
            )
    low = high / 2
    while high > LEAST and holds(low):
        low, high = low / 2, low
    while high > low * NEAR:
        middle = math.ceil(math.sqrt(low * high) * GRAIN) / GRAIN  # which all machines agree on
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def joined(uses: Uses) -> Uses:
    """Return the same uses with equal neighbours as one, so that the accountant composes few of them."""
    found: list[NoisySteps] = []
    for one in uses:
        if found and (found[-1].noise, found[-1].rate) == (one.noise, one.rate):
            found[-1] = NoisySteps(one.noise, one.rate, found[-1].steps + one.steps)
        else:
            found.append(one)
    return tuple(found)


def _accountant() -> PRVAccountant:
    try:
        from opacus.accountants import PRVAccountant  # noqa: PLC0415  # takes two seconds, and few runs need it
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opacus":
            raise
        raise ConfigError(
            "privacy.epsilon of a method that trains takes opacus; install fcil with its extra `privacy`"
        ) from error
    return PRVAccountant()
