"""Leverage scores from Gram matrices, against the singular value decomposition of all samples."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fcil.maths.herding import herd
from fcil.maths.leverage import drawn_order, leverage, mixed_rows, pseudo_inverse, second_moments

TYPES = [torch.float32, torch.float64]


def drawing(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def features_of(rows: int, size: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return features with outliers: squares of normal draws, in directions that differ in how often they occur."""
    normal = torch.randn(rows, size, generator=drawing(seed), dtype=torch.float64)
    return (normal.square() * torch.logspace(0, -1, size, dtype=torch.float64)).to(dtype)


def gram(parts: list[Tensor]) -> Tensor:
    """Return the sum of what clients send, each weighted by its samples."""
    return torch.stack([len(part) * second_moments(part).float().double() for part in parts]).sum(0)


def central(features: Tensor) -> Tensor:
    """Return the leverage as a server that had all features would: the squared norms of the rows of U."""
    left, values, _ = torch.linalg.svd(features.double(), full_matrices=False)
    return left[:, values > 1e-9 * values[0]].square().sum(1)


@pytest.mark.parametrize("dtype", TYPES)
def test_second_moments_are_the_mean_of_outer_products(dtype: torch.dtype) -> None:
    features = features_of(7, 4, dtype=dtype)
    found = second_moments(features)
    by_hand = torch.stack([torch.outer(row, row) for row in features.double()]).mean(0)
    torch.testing.assert_close(found, by_hand)
    assert torch.equal(found, found.T)
    assert torch.equal(second_moments(features[:0]), torch.zeros(4, 4, dtype=torch.float64))


@pytest.mark.parametrize("cuts", [[60], [10, 50], [1, 2, 27, 30]])
def test_scores_are_the_central_leverage_however_samples_are_split_among_clients(cuts: list[int]) -> None:
    features = features_of(60, 8)
    inverse = pseudo_inverse(gram(list(features.split(cuts))))
    found = leverage(features, inverse)
    torch.testing.assert_close(found, central(features), rtol=1e-4, atol=1e-5)
    assert found.sum().item() == pytest.approx(8, rel=1e-4)  # the rank


def test_herding_by_client_does_depend_on_the_split() -> None:
    """The premise of the test above: what herding ranks first is another sample once clients herd alone."""
    features = features_of(60, 8)
    together = herd(features, 10).tolist()
    first, second = features.split([30, 30])
    assert set(together) != {*herd(first, 5).tolist(), *(30 + herd(second, 5)).tolist()}


@given(st.integers(0, 1000), st.integers(0, 19))
def test_a_sample_that_occurs_ten_times_has_a_lower_score(seed: int, row: int) -> None:
    features = features_of(20, 5, seed)
    copied = torch.cat([features, features[row].expand(9, -1)])
    before, after = (leverage(rows, pseudo_inverse(gram([rows])))[row].item() for rows in (features, copied))
    assert after == pytest.approx(before / (1 + 9 * before), rel=1e-2)  # Sherman and Morrison
    assert after < before


def test_directions_that_no_sample_has_count_for_nothing() -> None:
    features = torch.cat([features_of(30, 4), torch.zeros(30, 2, dtype=torch.float64)], 1)
    inverse = pseudo_inverse(gram([features]))
    torch.testing.assert_close(inverse, torch.linalg.pinv(features.T @ features), rtol=1e-4, atol=1e-6)
    strange = torch.tensor([[0.0, 0.0, 0.0, 0.0, 3.0, 1.0]])
    assert leverage(strange, inverse).tolist() == [0.0]


def test_the_inverse_of_nothing_and_of_what_is_negative_is_zero() -> None:
    assert torch.equal(pseudo_inverse(torch.zeros(3, 3)), torch.zeros(3, 3, dtype=torch.float64))
    found = pseudo_inverse(torch.diag(torch.tensor([4.0, -2.0, 1e-9])))
    torch.testing.assert_close(found, torch.diag(torch.tensor([0.25, 0.0, 0.0], dtype=torch.float64)))


@given(st.integers(1, 8), st.integers(0, 1000))
def test_mixed_rows_have_the_gram_matrix_of_the_samples(rows: int, seed: int) -> None:
    features = features_of(rows, 3, seed)
    mixed = mixed_rows(features, drawing(seed))
    torch.testing.assert_close(mixed.T @ mixed, features.T @ features)


def test_as_printed_a_score_says_nothing_of_its_sample() -> None:
    features = features_of(400, 8)
    inverse = pseudo_inverse(gram([features]))
    own, mixed = leverage(features, inverse), leverage(mixed_rows(features, drawing()), inverse)
    assert mixed.sum().item() == pytest.approx(own.sum().item(), rel=1e-6)
    assert abs(torch.corrcoef(torch.stack([own, mixed]))[0, 1].item()) < 0.2  # 1 / sqrt(400) is the usual size
    assert mixed.std() < own.std() / 2


def test_a_draw_takes_each_row_first_in_proportion_to_its_score() -> None:
    scores, draw = torch.tensor([1.0, 2.0, 5.0, 0.0]), drawing()
    orders = torch.stack([drawn_order(scores, draw) for _ in range(4000)])
    first = torch.bincount(orders[:, 0], minlength=4) / 4000
    torch.testing.assert_close(first, torch.tensor([0.125, 0.25, 0.625, 0.0]), atol=0.03, rtol=0.0)
    after_the_last = orders[orders[:, 0] == 2][:, 1]  # without it, one to two
    assert (after_the_last == 0).double().mean().item() == pytest.approx(1 / 3, abs=0.04)
    assert bool((orders[:, 3] == 3).all())
    assert torch.equal(orders.sort(1).values, torch.arange(4).expand(4000, 4))


def test_rows_without_a_score_come_in_random_order() -> None:
    draw = drawing()
    firsts = {drawn_order(torch.zeros(3), draw)[0].item() for _ in range(50)}
    assert firsts == {0, 1, 2}
    assert sorted(drawn_order(torch.tensor([torch.nan, 1.0]), draw).tolist()) == [0, 1]
    assert drawn_order(torch.zeros(0), draw).tolist() == []
