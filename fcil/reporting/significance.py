"""Tests on figures that are paired by seed: a p-value, its correction over a table, and an interval."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

CONFIDENCE = 0.95  # of intervals


def paired_p_value(differences: Sequence[float]) -> float | None:
    """Return the two-sided p-value of a paired t-test that the mean difference is zero.

    None with fewer than two pairs, or where all differences are equal, since their spread then says nothing.

    >>> round(paired_p_value([1.0, 2.0, 3.0]), 4)  # t = 2 / (1 / sqrt(3)) = 3.4641 at two degrees of freedom
    0.0742
    """
    found = _mean_and_error(differences)
    if found is None or found[1] == 0:
        return None
    from scipy.stats import t as student  # noqa: PLC0415 (slow to import, and only tables need it)

    return float(2 * student.sf(abs(found[0]) / found[1], len(differences) - 1))


def paired_interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """Return the mean difference's 95 % confidence interval by the t-distribution; None with fewer than two pairs.

    >>> paired_interval([1.0, 2.0, 3.0])  # 2 -+ 4.3027 / sqrt(3)
    (-0.484, 4.484)
    """
    found = _mean_and_error(differences)
    if found is None:
        return None
    from scipy.stats import t as student  # noqa: PLC0415 (as above)

    mean, error = found
    half = error * float(student.ppf((1 + CONFIDENCE) / 2, len(differences) - 1))
    return round(mean - half, 3), round(mean + half, 3)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected by Holm's method for the number of tests; where there is no test, None stays.

    >>> holm([0.01, None, 0.04, 0.03])  # 3 x 0.01, 2 x 0.03, and 0.04 takes the larger one before it
    [0.03, None, 0.06, 0.06]
    """
    tested = sorted((p_value, place) for place, p_value in enumerate(p_values) if p_value is not None)
    corrected: list[float | None] = [None] * len(p_values)
    least = 0.0
    for rank, (p_value, place) in enumerate(tested):
        least = max(least, min(1.0, p_value * (len(tested) - rank)))
        corrected[place] = least
    return corrected


def p_cell(p_value: float | None) -> str:
    """Return a p-value as tables show it; where there is none, an empty cell.

    >>> p_cell(0.0123), p_cell(0.00002), p_cell(None)
    ('0.012', '< 0.001', '')
    """
    return "" if p_value is None else f"{p_value:.3f}" if p_value >= 0.001 else "< 0.001"


def _mean_and_error(differences: Sequence[float]) -> tuple[float, float] | None:
    """Return the mean and its standard error, of fewer than two values None."""
    values = [round(value, 9) for value in differences]  # equal ones may differ in their last bits
    if len(values) < 2:
        return None
    return statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5
