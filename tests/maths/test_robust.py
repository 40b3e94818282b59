"""Robust statistics against hand values, closed forms and a search."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fcil.core.messages import generator
from fcil.maths.robust import (
    MEDIAN,
    capped,
    cosine_distances,
    inner_products,
    krum_scores,
    lower_median,
    shared_distances,
    squared_distances,
    trimmed_mean,
    weiszfeld,
)


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("values", "share", "wanted"),
    [
        ([5.0, 1.0, 100.0, 3.0, 2.0], 0.2, 10 / 3),
        ([5.0, 1.0, 100.0, 3.0, 2.0], 0.0, 22.2),
        ([5.0, 1.0, 100.0], 0.2, 5.0),  # a fifth of three, rounded up, is one
        ([5.0, 1.0], 0.4, 3.0),
        ([5.0], 0.4, 5.0),
        ([5.0, 1.0, 100.0, 3.0], MEDIAN, 4.0),
        ([5.0, 1.0, 100.0, 3.0, 2.0], MEDIAN, 3.0),
        ([*range(10)], 0.2, 4.5),
        ([0.0, 0, 0, 0, 0, 0, 0, 0, 70, 70], 0.1, 70 / 8),
    ],
)
def test_a_trimmed_mean_leaves_out_a_share_at_either_end(values: list[float], share: float, wanted: float) -> None:
    assert float(trimmed_mean(double(values), share)) == pytest.approx(wanted)
    many = double(values)[:, None, None].expand(-1, 2, 3)
    torch.testing.assert_close(trimmed_mean(many, share), torch.full((2, 3), wanted, dtype=torch.float64))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9))
def test_half_at_either_end_is_the_median(values: list[float]) -> None:
    ordered = sorted(values)
    wanted = (ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2
    assert float(trimmed_mean(double(values), MEDIAN)) == pytest.approx(wanted)


def test_a_row_is_trimmed_over_its_holders_and_zero_without_any() -> None:
    values = double([[1.0, 1, 1], [2, 2, 2], [9, 9, 9], [100, 100, 100]])[..., None]
    held = torch.tensor([[True, False, False], [True, True, False], [True, True, False], [False, True, False]])
    assert trimmed_mean(values, MEDIAN, held).tolist() == [[2.0], [9.0], [0.0]]


def test_claims_are_capped_at_the_lower_median_of_those_that_claim_anything() -> None:
    claims = double([[30.0, 0.0, 7.0], [20.0, 0.0, 2.0**40], [2.0**40, 0.0, 0.0]])
    assert lower_median(claims).tolist() == [30.0, 0.0, 7.0]
    assert capped(claims).tolist() == [[30.0, 0.0, 7.0], [20.0, 0.0, 7.0], [30.0, 0.0, 0.0]]


def test_distances_over_shared_rows_are_means_and_neutral_where_none_is_shared() -> None:
    updates = double([[[1.0], [2.0], [9.0]], [[4.0], [2.0], [9.0]], [[9.0], [5.0], [0.0]], [[9.0], [9.0], [7.0]]])
    held = torch.tensor([[True, True, False], [True, True, False], [False, True, False], [False, False, True]])
    found = shared_distances(updates, held)
    assert found.tolist() == [[0.0, 4.5, 9.0, 9.0], [4.5, 0.0, 9.0, 9.0], [9.0, 9.0, 0.0, 9.0], [9.0, 9.0, 9.0, 0.0]]
    assert shared_distances(updates[2:], held[2:]).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_distances_and_krum_s_scores_are_those_of_all_pairs() -> None:
    points = drawn(7, 5, 2)
    distances = squared_distances(inner_products(points))
    for one, other in combinations(range(7), 2):
        assert float(distances[one, other]) == pytest.approx(float((points[one] - points[other]).square().sum()))
    for hostile in (0, 1, 2, 3, 6):
        neighbours = max(7 - hostile - 2, 1)
        for one, score in enumerate(krum_scores(distances, hostile).tolist()):
            others = sorted(float((points[one] - points[other]).square().sum()) for other in range(7) if other != one)
            assert score == pytest.approx(sum(others[:neighbours]))


def test_cosine_distances_are_those_of_all_pairs_and_know_no_length() -> None:
    updates = drawn(5, 7)
    found = cosine_distances(inner_products(updates * double([1.0, 1e-9, 1e9, 3.0, 1.0])[:, None]))
    for one, other in combinations(range(5), 2):
        cosine = float(torch.nn.functional.cosine_similarity(updates[one], updates[other], dim=0))
        assert float(found[one, other]) == pytest.approx(1 - cosine)
    assert found.diagonal().tolist() == pytest.approx([0.0] * 5, abs=1e-12)
    opposite, none = double([[2.0, 0.0], [-0.5, 0.0]]), torch.zeros(2, 2, dtype=torch.float64)
    assert cosine_distances(inner_products(opposite)).tolist() == [[0.0, 2.0], [2.0, 0.0]]
    assert cosine_distances(none).tolist() == [[1.0, 1.0], [1.0, 1.0]], "no update has no direction"


def test_krum_s_score_of_hand_values() -> None:
    """Of 0, 1, 2 and 10 with f = 1, the score is the distance to the nearest one."""
    distances = squared_distances(inner_products(double([[0.0], [1.0], [2.0], [10.0]])))
    assert krum_scores(distances, 1).tolist() == [1.0, 1.0, 1.0, 64.0]
    assert krum_scores(distances, 0).tolist() == [5.0, 2.0, 5.0, 145.0]
    assert krum_scores(torch.zeros(1, 1, dtype=torch.float64), 0).tolist() == [0.0]


def geometric(points: Tensor, weights: Tensor | None = None) -> Tensor:
    weights = torch.ones(len(points)) if weights is None else weights
    return weiszfeld(inner_products(points), weights, 1e-9, 2000) @ points


def test_the_geometric_median_of_known_figures() -> None:
    torch.testing.assert_close(geometric(double([[0.0], [1.0], [7.0]])), double([1.0]), atol=1e-3, rtol=0)
    square = double([[0.0, 0], [1, 0], [1, 1], [0, 1]])
    torch.testing.assert_close(geometric(square), double([0.5, 0.5]))
    kite = double([[-1.0, 0], [1, 0], [0, 4], [0, -1]])  # of a convex quadrilateral, where the diagonals cross
    torch.testing.assert_close(geometric(kite), double([0.0, 0.0]), atol=1e-4, rtol=0)
    equilateral = double([[0.0, 0], [1, 0], [0.5, math.sqrt(3) / 2]])
    torch.testing.assert_close(geometric(equilateral), equilateral.mean(0))


@pytest.mark.parametrize("seed", range(4))
def test_no_point_nearby_is_closer_to_all_than_the_geometric_median(seed: int) -> None:
    points, weights = drawn(6, 3, seed=seed), torch.rand(6, generator=generator(seed)).double() + 0.1

    def cost(found: Tensor) -> float:
        return float(((points - found).norm(dim=1) * weights).sum())

    found = geometric(points, weights)
    assert all(cost(found) <= cost(found + step) + 1e-9 for step in drawn(200, 3, seed=9) * 0.01)


def test_one_point_far_away_hardly_moves_the_geometric_median() -> None:
    points = drawn(9, 4)
    far = torch.cat([points, drawn(1, 4, seed=2) * 1e6])
    assert float((geometric(far) - geometric(points)).norm()) < 1.0
    assert float(far.mean(0).norm()) > 1e4


def test_problems_side_by_side_have_their_own_weights_and_without_any_no_coefficient() -> None:
    points, weights = drawn(2, 4, 3), double([[1.0, 0.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    found = weiszfeld(torch.einsum("rif,rjf->rij", points, points), weights, 1e-6, 30)
    assert found[1].tolist() == [0.0] * 4
    assert float(found[0].sum()) == pytest.approx(1.0)
    assert float(found[0][1]) == 0.0
