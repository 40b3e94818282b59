"""Who trains in a round, whatever clients are numbered."""

from __future__ import annotations

import numpy as np
import pytest

from fcil.data.scenario.population import draw_participants


def test_participants_are_those_that_numpy_draws_from_the_numbers() -> None:
    present = [3, 5, 8, 9, 11, 20]
    for seed in range(5):
        drawn = np.random.default_rng(seed).choice(np.array(present), 4, replace=False).tolist()
        assert draw_participants(present, 4, seed) == sorted(drawn)


@pytest.mark.parametrize("large", [2**62, 2**63 + 5, 2**200])
def test_a_number_larger_than_an_array_can_hold_stays_what_it_is(large: int) -> None:
    assert draw_participants([1, large, 7], 3, 0) == [1, 7, large]
    assert draw_participants([1, large, 7], 9, 0) == [1, 7, large]
    assert draw_participants([], 3, 0) == []
