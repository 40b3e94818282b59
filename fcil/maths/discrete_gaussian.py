"""Exact samples of the discrete Gaussian: P(x) proportional to exp(-x^2 / 2 s^2) over whole numbers x.

After Canonne, Kamath and Steinke (NeurIPS 2020), on arrays. Every decision compares whole numbers that are drawn
uniformly, so no floating point is involved, whose gaps would tell of the value below the noise (Mironov, 2012).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

LARGEST = 1 << 25  # scale
FURTHEST = 64  # scales from zero that are sampled; beyond, the probability is below e^-2000
PIECE = 1 << 16  # samples at a time, so that they stay in the processor's cache
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Uniform(Protocol):
    """A source of uniform whole numbers."""

    def below(self, bound: int, count: int) -> npt.NDArray[np.uint64]:
        """Return whole numbers from 0 to below a bound."""
        ...


def discrete_gaussian(scale: int, count: int, draw: Uniform) -> Numbers:
    """Return samples of the discrete Gaussian whose s is a whole number."""
    if not 1 <= scale <= LARGEST:
        raise ValueError(f"scale: found {scale}, should be from 1 to {LARGEST}")
    pieces = [_piece(scale, min(PIECE, count - start), draw) for start in range(0, count, PIECE)]
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)


def _piece(scale: int, count: int, draw: Uniform) -> Numbers:
    """Return samples by rejection: a discrete Laplace y of this scale is kept with exp(-(|y| - s)^2 / 2 s^2)."""
    found, missing = np.zeros(count, dtype=np.int64), np.arange(count)
    while len(missing):
        drawn = _laplace(scale, len(missing), draw)
        kept = _with_exponential((np.abs(drawn) - scale) ** 2, 2 * scale * scale, draw)
        found[missing[kept]] = drawn[kept]
        missing = missing[~kept]
    return found


def _laplace(scale: int, count: int, draw: Uniform) -> Numbers:
    """Return samples with P(x) proportional to exp(-|x| / scale)."""
    found, missing = np.zeros(count, dtype=np.int64), np.arange(count)
    while len(missing):
        rest = draw.below(scale, len(missing)).astype(np.int64)
        kept = _with_exponential(rest, scale, draw)
        wholes = _runs(int(kept.sum()), draw)
        size = rest[kept] + scale * wholes
        negative = draw.below(2, len(size)) == 1
        fits = ~(negative & (size == 0)) & (wholes < FURTHEST)  # zero once, not for either sign
        places = np.flatnonzero(kept)[fits]
        found[missing[places]] = np.where(negative, -size, size)[fits]
        missing = np.delete(missing, places)
    return found


def _runs(count: int, draw: Uniform) -> Numbers:
    """Return, for each, how many events of probability e^-1 happen before one does not."""
    runs, going = np.zeros(count, dtype=np.int64), np.arange(count)
    while len(going):
        going = going[_with_exponential(np.ones(len(going), dtype=np.int64), 1, draw)]
        runs[going] += 1
    return runs


def _with_exponential(above: Numbers, below: int, draw: Uniform) -> Flags:
    """Return events of probability exp(-above / below)."""
    happens = np.ones(len(above), dtype=np.bool_)
    rest, going = above % below, np.arange(len(above))
    happens[going] = _with_fraction(rest, below, draw)
    wholes = above // below
    going = np.flatnonzero(happens & (wholes > 0))
    while len(going):
        happens[going] = _with_fraction(np.ones(len(going), dtype=np.int64), 1, draw)
        wholes[going] -= 1
        going = going[happens[going] & (wholes[going] > 0)]
    return happens


def _with_fraction(above: Numbers, below: int, draw: Uniform) -> Flags:
    """Return events of probability exp(-g), g = above / below at most 1.

    Events of probability g / 1, g / 2, g / 3 and so on are drawn until one does not happen; its number is odd with
    exactly that probability.
    """
    odd, going = np.ones(len(above), dtype=np.bool_), np.arange(len(above))
    step = 1
    while len(going):
        going = going[draw.below(step * below, len(going)).astype(np.int64) < above[going]]
        step += 1
        odd[going] = step % 2 == 1
    return odd
