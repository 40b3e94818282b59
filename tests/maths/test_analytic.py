"""Closed-form heads: each equals its definition over the samples, which the sums alone replace."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fcil.core.messages import generator
from fcil.maths.analytic import (
    ABSENT,
    DECADES,
    Sums,
    are_possible,
    chosen_penalty,
    cross_validation,
    feature_sums,
    gaussian_head,
    penalty_grid,
    projected,
    ridge,
    ridge_head,
    symmetric,
    trace,
    triangle,
    within_covariance,
)

CLASSES = 3


def samples(each: int = 20, size: int = 5, spread: float = 0.7) -> tuple[Tensor, Tensor]:
    """Return features around a mean per class, and their outputs."""
    draw = generator(3)
    means = torch.rand(CLASSES, size, generator=draw, dtype=torch.float64)
    targets = torch.arange(CLASSES).repeat(each)
    return means[targets] + spread * torch.randn(len(targets), size, generator=draw, dtype=torch.float64), targets


def test_the_sums_of_two_samples_by_hand() -> None:
    found = feature_sums(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([2, 0]), 3)
    assert found.gram.tolist() == [[10.0, 14.0], [14.0, 20.0]]
    assert found.classes.tolist() == [[3.0, 4.0], [0.0, 0.0], [1.0, 2.0]]
    assert found.counts.tolist() == [1.0, 0.0, 1.0]
    assert {value.dtype for value in (found.gram, found.classes, found.counts)} == {torch.float64}
    assert triangle(found.gram).tolist() == [10.0, 14.0, 20.0]
    assert trace(found) == 30.0


def test_the_projection_of_one_sample_by_hand() -> None:
    features = torch.tensor([[1.0, 3.0]], dtype=torch.float64)  # standardised: (-1, 1)
    found = projected(features, torch.tensor([[1.0, 0.0, 2.0], [3.0, -1.0, 0.5]]))
    torch.testing.assert_close(found, torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.float64), rtol=1e-4, atol=1e-9)


def test_a_symmetric_matrix_travels_as_its_triangle() -> None:
    for size in (1, 2, 7):
        features = torch.randn(9, size, generator=generator(size), dtype=torch.float64)
        gram = features.T @ features
        gram = (gram + gram.T) / 2
        assert torch.equal(symmetric(triangle(gram)), gram)


def test_sums_of_parts_add_up_and_a_new_class_is_a_row_of_zeros() -> None:
    features, targets = samples()
    whole = feature_sums(features, targets, CLASSES)
    parts = feature_sums(features[:7], targets[:7], CLASSES) + feature_sums(features[7:], targets[7:], CLASSES)
    torch.testing.assert_close(parts.gram, whole.gram, rtol=1e-12, atol=0)
    torch.testing.assert_close(parts.classes, whole.classes, rtol=1e-12, atol=0)
    wider = whole.widened(5)
    assert torch.equal(wider.classes[:3], whole.classes)
    assert not wider.classes[3:].any()
    assert wider.counts.tolist() == [20.0, 20.0, 20.0, 0.0, 0.0]


def test_the_ridge_of_one_feature_by_hand() -> None:
    found = feature_sums(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1]), 2)
    expected = torch.tensor([[1 / 8], [2 / 8]], dtype=torch.float64)  # C / (G + lambda) = (1, 2) / (5 + 3)
    torch.testing.assert_close(ridge(found.gram, found.classes, 3.0), expected)


def test_the_gradient_of_the_ridge_vanishes_at_its_solution() -> None:
    features, targets = samples()
    found = feature_sums(features, targets, CLASSES)
    weight = ridge(found.gram, found.classes, 0.3).T
    gradient = features.T @ (features @ weight - F.one_hot(targets, CLASSES).double()) + 0.3 * weight
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-10)


def test_the_cross_validation_from_sums_is_that_of_the_samples() -> None:
    features, targets = samples()
    y, penalties = F.one_hot(targets, CLASSES).double(), torch.tensor([0.01, 1.0, 50.0], dtype=torch.float64)
    expected = []
    for penalty in penalties.tolist():
        hat = features @ torch.linalg.inv(features.T @ features + penalty * torch.eye(5)) @ features.T
        expected.append(((y - hat @ y).square().sum() / 60 / (1 - hat.trace() / 60) ** 2).item())
    found = cross_validation(feature_sums(features, targets, CLASSES), penalties)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0)


def test_the_penalty_is_the_decade_with_the_lowest_cross_validation_whatever_the_features_scale() -> None:
    features, targets = samples(each=4, size=9, spread=2.0)
    found = feature_sums(features, targets, CLASSES)
    grid = penalty_grid(found.gram)
    torch.testing.assert_close(grid, found.gram.trace() / 9 * torch.tensor(DECADES, dtype=torch.float64))
    penalty = chosen_penalty(found)
    assert penalty == float(grid[cross_validation(found, grid).argmin()])
    assert penalty > float(grid[0])  # noise is not fitted
    assert chosen_penalty(feature_sums(10 * features, targets, CLASSES)) == pytest.approx(100 * penalty, rel=1e-9)


def test_fewer_samples_than_features_and_none_at_all_still_have_a_penalty() -> None:
    features, targets = samples(each=1, size=9)
    few = feature_sums(features, targets, CLASSES)
    assert float(penalty_grid(few.gram)[0]) <= chosen_penalty(few) <= float(penalty_grid(few.gram)[-1])
    none = feature_sums(features[:0], targets[:0], CLASSES)
    weight, bias = ridge_head(none, chosen_penalty(none), unit=True)
    assert not weight.any()
    assert bias.tolist() == [ABSENT] * CLASSES


def test_rounded_sums_have_a_penalty_above_what_the_rounding_can_do() -> None:
    """By hand: of one sample along the first axis, a G that is rounded can have a negative eigenvalue."""
    exact = Sums(
        torch.diag(torch.tensor([1e-3, 0.0]).double()), torch.tensor([[0.03, 0.0]]).double(), torch.ones(1).double()
    )
    rounded = Sums(exact.gram + torch.tensor([[0, 1e-4], [1e-4, -1e-5]]).double(), exact.classes, exact.counts)
    assert float(torch.linalg.eigvalsh(rounded.gram)[0]) < -chosen_penalty(rounded)
    penalty = chosen_penalty(rounded, error=1e-4)
    assert penalty >= 4e-4
    assert bool(ridge(rounded.gram, rounded.classes, penalty).isfinite().all())
    assert chosen_penalty(exact, error=0.0) == chosen_penalty(exact)


def test_unit_columns_have_the_length_one_and_point_where_the_ridge_does() -> None:
    found = feature_sums(*samples(), CLASSES)
    plain, unit = (ridge_head(found, 0.1, unit=unit)[0] for unit in (False, True))
    torch.testing.assert_close(unit.norm(dim=1), torch.ones(CLASSES, dtype=torch.float64))
    torch.testing.assert_close(F.cosine_similarity(plain, unit), torch.ones(CLASSES, dtype=torch.float64))


@pytest.mark.parametrize("head", ["ridge", "gaussian"])
def test_a_class_without_samples_is_never_predicted(head: str) -> None:
    features, targets = samples()
    found = feature_sums(features, targets, CLASSES).widened(CLASSES + 1)
    weight, bias = ridge_head(found, 0.1, unit=True) if head == "ridge" else gaussian_head(found, 0.1)
    scores = features @ weight.T + bias
    assert bool(torch.isfinite(scores.float()).all())
    assert int(scores.argmax(1).max()) < CLASSES


def test_the_gaussian_head_ranks_classes_by_mahalanobis_distance() -> None:
    features, targets = samples()
    means = torch.stack([features[targets == label].mean(0) for label in range(CLASSES)])
    centred = features - means[targets]
    within = centred.T @ centred / (60 - CLASSES)
    found = feature_sums(features, targets, CLASSES)
    torch.testing.assert_close(within_covariance(found), within, rtol=1e-9, atol=1e-12)
    shrunk = 0.8 * within + 0.2 * within.trace() / 5 * torch.eye(5, dtype=torch.float64)
    gaps = features[:, None] - means
    distances = torch.einsum("nci,ij,ncj->nc", gaps, torch.linalg.inv(shrunk), gaps)
    weight, bias = gaussian_head(found, 0.2)
    scores = features @ weight.T + bias
    torch.testing.assert_close(scores - scores[:, :1], (distances[:, :1] - distances) / 2, rtol=1e-8, atol=1e-9)


def test_one_sample_of_each_class_has_a_gaussian_head_too() -> None:
    features, targets = samples(each=1)
    weight, bias = gaussian_head(feature_sums(features, targets, CLASSES), 0.1)
    assert (features @ weight.T + bias).argmax(1).tolist() == [0, 1, 2]


def test_only_sums_over_samples_are_possible() -> None:
    found = feature_sums(*samples(), CLASSES)
    assert are_possible(found)
    assert are_possible(found.widened(5))
    stray = found.widened(4).classes
    stray[3, 0] = 1.0
    impossible = [
        Sums(found.gram, 3 * found.classes, found.counts),  # means longer than the features
        Sums(found.gram - torch.eye(5) * trace(found), found.classes, found.counts),
        Sums(found.gram, found.classes, -found.counts),
        Sums(found.gram, stray, found.widened(4).counts),  # a sum without samples
    ]
    assert [are_possible(sums) for sums in impossible] == [False] * 4


def test_taking_all_samples_out_again_leaves_nothing() -> None:
    features, targets = samples()
    left = [feature_sums(features[rows], targets[rows], CLASSES) for rows in (slice(0, 13), slice(13, 60))]
    minus = [Sums(-sums.gram, -sums.classes, -sums.counts) for sums in left]
    whole = feature_sums(features, targets, CLASSES)
    rest = whole + minus[0] + minus[1]
    assert are_possible(rest, trace(whole))
    assert not rest.exact().gram.any()
    assert not rest.exact().classes.any()
