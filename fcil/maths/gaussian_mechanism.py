"""The privacy of Gaussian noise, exactly (Balle and Wang, 2018), for sums that one sample changes by at most 1.

A mechanism is (epsilon, delta)-private if, whatever it shows, its probability with a sample is at most e^epsilon times
that without it, but for delta. `noise` is the standard deviation of each number.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fcil.core.keystream import Keystream

STEPS = 200  # of a bisection: more than a number in double precision has bits


def delta_of(noise: float, epsilon: float) -> float:
    """Return the least delta: P(1 / 2s - epsilon s) - e^epsilon P(-1 / 2s - epsilon s), P the normal distribution."""
    from scipy.special import log_ndtr, ndtr  # noqa: PLC0415 (15 MB that a site without privacy does not need)

    half, shift = 1 / (2 * noise), epsilon * noise
    return float(ndtr(half - shift) - math.exp(epsilon + log_ndtr(-half - shift)))


def noise_of(epsilon: float, delta: float) -> float:
    """Return the least noise that is (epsilon, delta)-private."""
    return _crossing(lambda noise: delta_of(noise, epsilon) <= delta)


def epsilon_of(noise: float, delta: float) -> float:
    """Return the least epsilon of this noise; 0 where it is (0, delta)-private."""
    return 0.0 if delta_of(noise, 0.0) <= delta else _crossing(lambda epsilon: delta_of(noise, epsilon) <= delta)


def repeated(noise: float, times: int) -> float:
    """Return the noise of one mechanism that is as private as this one, used so many times."""
    return noise / math.sqrt(times)


def normal(count: int, draw: Keystream) -> npt.NDArray[np.float64]:
    """Return standard normal numbers, from uniform ones of 53 bits that are never 0 or 1."""
    from scipy.special import ndtri  # noqa: PLC0415 (as above)

    uniform = ((draw.words(count) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    found: npt.NDArray[np.float64] = ndtri(uniform)
    return found


def _crossing(holds: Callable[[float], bool]) -> float:
    """Return the least positive number for which a condition holds, if it holds for all above."""
    high = 1.0
    while not holds(high):
        high *= 2
    low = 0.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
        if middle in (low, high) and high - low <= math.ulp(high):
            break
    return high
