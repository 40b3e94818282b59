"""Distances of batch statistics, and the loss that looks for what a student gets wrong."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck
from torch.distributions import Categorical, kl_divergence

from fcil.maths.synthesis import adversarial_loss, blended, channel_statistics, statistics_gap


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 4), (5, 3, 4, 2)])
def test_a_channel_s_statistics_are_those_of_all_its_values(shape: tuple[int, ...]) -> None:
    maps = draws(*shape)
    mean, variance = channel_statistics(maps)
    for channel in range(3):
        values = maps[:, channel].flatten().tolist()
        middle = math.fsum(values) / len(values)
        assert mean[channel].item() == pytest.approx(middle)
        spread = math.fsum((value - middle) ** 2 for value in values) / len(values)
        assert variance[channel].item() == pytest.approx(spread)


def test_the_gap_by_hand_is_the_sum_of_two_lengths() -> None:
    mean, variance = torch.tensor([4.0, 0.0]), torch.tensor([1.0, 6.0])
    kept_mean, kept_variance = torch.tensor([1.0, 4.0]), torch.tensor([13.0, 1.0])
    assert statistics_gap(mean, variance, kept_mean, kept_variance).item() == 5 + 13
    assert statistics_gap(mean, variance, mean, variance).item() == 0


def test_the_gap_s_gradient_is_that_of_finite_differences_and_none_where_nothing_is_off() -> None:
    maps, kept_mean, kept_variance = draws(4, 3, 2, 2).requires_grad_(True), draws(3, seed=1), draws(3, seed=2).exp()
    assert gradcheck(lambda values: statistics_gap(*channel_statistics(values), kept_mean, kept_variance), (maps,))
    mean, variance = draws(3).requires_grad_(True), draws(3).requires_grad_(True)
    statistics_gap(mean, variance, mean.detach(), variance.detach()).backward()
    assert mean.grad is not None
    assert not mean.grad.any()


@given(st.floats(0, 0.99), st.lists(st.floats(-10, 10), min_size=1, max_size=8))
def test_blending_batch_after_batch_weighs_them_geometrically(momentum: float, values: list[float]) -> None:
    first, *later = (torch.tensor(value, dtype=torch.float64) for value in values)
    kept = first
    for value in later:
        kept = blended(value, kept, momentum)
    last = len(values) - 1
    weights = [(1 - momentum if number else 1) * momentum ** (last - number) for number in range(len(values))]
    assert math.fsum(weights) == pytest.approx(1)
    expected = math.fsum(weight * value for weight, value in zip(weights, values, strict=True))
    assert kept.item() == pytest.approx(expected, abs=1e-9)


def test_the_adversarial_loss_by_hand_counts_where_student_and_teacher_agree() -> None:
    teacher = torch.log(torch.tensor([[3.0, 1.0], [3.0, 1.0]], dtype=torch.float64))
    student = torch.log(torch.tensor([[9.0, 1.0], [1.0, 1.5]], dtype=torch.float64))
    right = 0.75 * math.log(0.75 / 0.9) + 0.25 * math.log(0.25 / 0.1)
    wrong = 0.75 * math.log(0.75 / 0.4) + 0.25 * math.log(0.25 / 0.6)
    assert adversarial_loss(student, teacher).tolist() == pytest.approx([-right, 0])
    assert adversarial_loss(student, teacher, "differ").tolist() == pytest.approx([0, -wrong])


def test_both_masks_together_are_the_whole_divergence() -> None:
    student, teacher = draws(50, 4), draws(50, 4, seed=1)
    both = adversarial_loss(student, teacher) + adversarial_loss(student, teacher, "differ")
    torch.testing.assert_close(-both, kl_divergence(Categorical(logits=teacher), Categorical(logits=student)))
    assert bool((adversarial_loss(student, teacher) < 0).any())
    assert bool((adversarial_loss(student, teacher, "differ") < 0).any())


def test_a_step_against_the_adversarial_loss_makes_student_and_teacher_differ_more() -> None:
    """Both answers follow the image, so the gradient runs through both."""
    left, right = draws(6, 4), draws(6, 4, seed=1)
    image = draws(3, 6, seed=2).requires_grad_(True)

    def loss(values: Tensor) -> Tensor:
        return adversarial_loss(values @ left, values @ (left + 0.3 * right))

    value = loss(image)
    assert bool((value < 0).all())
    (gradient,) = torch.autograd.grad(value.sum(), image)
    assert loss(image - 1e-4 * gradient).sum() < value.sum()
    assert gradcheck(loss, (image,))
