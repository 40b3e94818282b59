"""Moments that add up over sites."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from fcil.maths.moments import Moments, moments, pooled

NUMBERS = st.lists(st.floats(-1e6, 1e6), max_size=8)


@examples(50)
@given(parts=st.lists(NUMBERS, min_size=1, max_size=5))
def test_the_moments_of_parts_are_those_of_the_whole(parts: list[list[float]]) -> None:
    whole = np.array([value for part in parts for value in part])
    found = pooled([moments(np.array(part)) for part in parts])
    assert found.count == len(whole)
    if len(whole):
        assert found.mean == pytest.approx(whole.mean(), rel=1e-9, abs=1e-9)
        assert found.deviation == pytest.approx(whole.std(), rel=1e-6, abs=1e-3)


def test_moments_by_hand() -> None:
    assert moments(np.array([1.0, 2.0, np.nan, 6.0])) == Moments(3, 3.0, 14.0)
    assert pooled([Moments(1, 1.0, 0.0), Moments(2, 4.0, 8.0)]) == Moments(3, 3.0, 14.0)
    assert pooled([Moments(0, 0.0, 0.0)]).deviation == 0.0


def test_a_large_mean_costs_no_digits_of_the_deviation() -> None:
    values = 1.7e9 + np.array([-1.0, 1.0, -1.0, 1.0])  # times in seconds, whose plain squares have no digit left
    assert pooled([moments(values[:2]), moments(values[2:])]).deviation == 1.0
