import math

import numpy
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from fcil.maths import causal
from fcil.maths.causal import joint_nll, momentum_step, new_neighbours, without_effect

TYPES = [torch.float32, torch.float64]


def draws(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def neighbours_by_hand(features: Tensor, new: list[bool], count: int) -> list[list[int]]:
    rows = [row / math.sqrt(sum(row**2)) for row in features.numpy()]
    count = max(0, min(count, sum(new) - 1))
    found = []
    for index, row in enumerate(rows):
        others = [other for other in range(len(rows)) if new[other] and other != index]
        others.sort(key=lambda other: float(sum((row - rows[other]) ** 2)))
        found.append(others[:count])
    return found


@given(st.lists(st.booleans(), min_size=1, max_size=25), st.integers(0, 12), st.integers(0, 1000))
def test_neighbours_equal_a_brute_force_search(new: list[bool], count: int, seed: int) -> None:
    features = draws(len(new), 4, seed=seed)
    assert new_neighbours(features, torch.tensor(new), count).tolist() == neighbours_by_hand(features, new, count)


def test_ten_neighbours_are_the_default() -> None:
    new = torch.ones(30, dtype=torch.bool)
    assert new_neighbours(draws(30, 4), new).shape == (30, 10)


def test_a_search_in_several_blocks_is_the_same_search(monkeypatch: pytest.MonkeyPatch) -> None:
    features, new = draws(23, 4), torch.arange(23) % 3 > 0
    whole = new_neighbours(features, new, 5)
    monkeypatch.setattr(causal, "BLOCK", 4)
    assert torch.equal(new_neighbours(features, new, 5), whole)


def test_a_copy_is_the_nearest_and_oneself_is_not() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 2.0]])
    assert new_neighbours(features, torch.ones(4, dtype=torch.bool), 1).squeeze(1).tolist() == [2, 3, 0, 1]


def test_a_feature_of_zero_is_at_distance_one_from_all_others() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])  # the first two are sqrt(2) apart
    assert new_neighbours(features, torch.ones(3, dtype=torch.bool), 1)[:2].tolist() == [[2], [2]]


def test_the_length_of_a_feature_does_not_matter() -> None:
    features, new = draws(12, 3), torch.arange(12) % 2 == 0
    scaled = features * torch.linspace(0.1, 50, 12, dtype=torch.float64)[:, None]
    assert torch.equal(new_neighbours(features, new, 4), new_neighbours(scaled, new, 4))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("candidates", [0, 1])
def test_with_fewer_than_two_new_samples_there_are_no_neighbours(candidates: int, dtype: torch.dtype) -> None:
    found = new_neighbours(draws(5, 3, dtype=dtype), torch.arange(5) < candidates)
    assert found.shape == (5, 0)
    assert found.dtype == torch.int64


def test_old_samples_have_as_many_neighbours_as_new_ones() -> None:
    found = new_neighbours(draws(6, 3), torch.tensor([True, True, True, False, False, False]))
    assert found.shape == (6, 2)
    assert bool((found < 3).all())


def joint_by_hand(logits: Tensor, neighbours: Tensor) -> numpy.ndarray:
    """Return (p + q) / 2, p the softmax, q the mean of the neighbours' softmaxes."""

    def softmax(row: numpy.ndarray) -> numpy.ndarray:
        return numpy.exp(row) / numpy.exp(row).sum()

    rows = []
    for row, others in zip(logits.numpy(), neighbours.numpy(), strict=True):
        rows.append((softmax(row) + sum(softmax(other) for other in others) / len(others)) / 2)
    return numpy.array(rows)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 1000))
def test_the_loss_equals_a_loop(classes: int, count: int, seed: int) -> None:
    logits, neighbours = draws(3, classes, seed=seed), draws(3, count, classes, seed=seed + 1)
    labels = torch.arange(3) % classes
    wanted = joint_by_hand(logits, neighbours)
    loss = joint_nll(logits, neighbours, labels)
    assert loss.tolist() == pytest.approx([-math.log(row[y]) for row, y in zip(wanted, labels.tolist(), strict=True)])


def test_the_loss_by_hand() -> None:
    logits = torch.log(torch.tensor([[0.2, 0.8]], dtype=torch.float64))
    neighbours = torch.log(torch.tensor([[[0.5, 0.5], [0.3, 0.7]]], dtype=torch.float64))
    assert joint_nll(logits, neighbours, torch.tensor([0])).item() == pytest.approx(-math.log(0.3))


def test_no_gradient_flows_through_the_neighbours() -> None:
    logits, neighbours = draws(3, 4).requires_grad_(True), draws(3, 2, 4, seed=1).requires_grad_(True)
    labels = torch.tensor([0, 3, 1])
    value = joint_nll(logits, neighbours, labels)
    own, through = torch.autograd.grad(value.sum(), (logits, neighbours), allow_unused=True)
    assert own.abs().sum() > 0
    assert through is None


def test_the_gradient_is_that_of_the_cross_entropy_times_the_own_share() -> None:
    """d(-log j_y)/dz = (p_y / (p_y + q_y)) (p - onehot)."""
    logits, neighbours, labels = draws(3, 4).requires_grad_(True), draws(3, 2, 4, seed=1), torch.tensor([0, 3, 1])
    assert gradcheck(lambda values: joint_nll(values, neighbours, labels), (logits,))
    (gradient,) = torch.autograd.grad(joint_nll(logits, neighbours, labels).sum(), logits)
    p, q = F.softmax(logits.detach(), 1), F.softmax(neighbours, 2).mean(1)
    chosen = torch.eye(4, dtype=torch.float64)[labels]
    share = (p * chosen).sum(1) / ((p + q) * chosen).sum(1)
    torch.testing.assert_close(gradient, share[:, None] * (p - chosen))


@pytest.mark.parametrize("dtype", TYPES)
def test_without_neighbours_it_is_the_cross_entropy(dtype: torch.dtype) -> None:
    logits, labels = draws(3, 4, dtype=dtype), torch.tensor([0, 3, 1])
    none = torch.zeros(3, 0, 4, dtype=dtype)
    found = joint_nll(logits, none, labels)
    assert found.dtype == dtype
    torch.testing.assert_close(found, F.cross_entropy(logits, labels, reduction="none"))


@pytest.mark.parametrize("dtype", TYPES)
def test_the_loss_is_finite_where_the_probabilities_underflow(dtype: torch.dtype) -> None:
    logits = torch.tensor([[0.0, 2000.0]], dtype=dtype, requires_grad=True)
    loss = joint_nll(logits, torch.tensor([[[0.0, 3000.0]]], dtype=dtype), torch.tensor([0]))
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert loss.item() == pytest.approx(2000 + math.log(2), rel=1e-6)
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("dtype", TYPES)
def test_the_momentum_is_a_decayed_sum_of_batch_means(dtype: torch.dtype) -> None:
    batches = [draws(count, 3, seed=count, dtype=dtype) for count in (4, 1, 7)]
    momentum = torch.zeros(3, dtype=dtype)
    for batch in batches:
        momentum = momentum_step(momentum, batch)
    means = [batch.mean(0) for batch in batches]
    assert momentum.dtype == dtype
    torch.testing.assert_close(momentum, 0.81 * means[0] + 0.9 * means[1] + means[2])


def test_the_momentum_carries_no_gradient_and_an_empty_batch_only_decays_it() -> None:
    assert not momentum_step(torch.zeros(3), torch.ones(2, 3, requires_grad=True)).requires_grad
    torch.testing.assert_close(momentum_step(torch.tensor([1.0, 2.0]), torch.zeros(0, 2)), torch.tensor([0.9, 1.8]))


@pytest.mark.parametrize("dtype", TYPES)
def test_the_head_loses_the_projection_written_out(dtype: torch.dtype) -> None:
    features, weight = draws(4, 5, dtype=dtype), draws(3, 5, seed=1, dtype=dtype)
    direction = F.normalize(draws(5, seed=3, dtype=dtype), dim=0)
    projection = torch.outer(direction, direction)
    wanted = torch.stack([weight @ f - 0.5 * weight @ (projection @ f) for f in features])
    found = without_effect(weight, direction)
    assert found.dtype == dtype
    torch.testing.assert_close(features @ found.T, wanted)


def test_the_whole_effect_removed_leaves_what_is_across_the_direction() -> None:
    weight, direction = draws(2, 3, seed=1), torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    across = weight.clone()
    across[:, 1] = 0
    assert torch.equal(without_effect(weight, direction, alpha=1.0), across)


def test_a_zero_direction_removes_nothing() -> None:
    weight = draws(2, 3)
    assert torch.equal(without_effect(weight, torch.zeros(3, dtype=torch.float64)), weight)
