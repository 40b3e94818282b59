import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck
from torch.distributions import Bernoulli, kl_divergence

from fcil.maths.relation import old_outputs_distillation, relation_bce, relation_kl, relation_target


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_target_replaces_the_first_outputs_by_the_teachers_sigmoids() -> None:
    teacher = torch.log(torch.tensor([[1.0, 3.0], [4.0, 1.0]]))
    found = relation_target(torch.tensor([0, 3]), teacher, 4)
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.75, 0.0, 0.0], [0.8, 0.5, 0.0, 1.0]]))


def test_the_target_leaves_the_teacher_alone() -> None:
    teacher = draws(2, 3)
    copy = teacher.clone()
    relation_target(torch.tensor([0, 1]), teacher, 5)
    assert torch.equal(teacher, copy)


def test_relation_bce_is_the_cross_entropy_with_a_soft_target() -> None:
    logits = draws(3, 4).requires_grad_(True)
    target = torch.sigmoid(draws(3, 4, seed=1))
    p = torch.sigmoid(logits.detach())
    by_hand = -(target * p.log() + (1 - target) * (1 - p).log()).mean(1)
    torch.testing.assert_close(relation_bce(logits, target), by_hand, check_dtype=True)
    assert gradcheck(lambda values: relation_bce(values, target), (logits,))


def test_relation_kl_is_finite_in_half_precision() -> None:
    logits = torch.tensor([[4.0, -4.0, 0.5]])
    target = torch.tensor([[1.0, 0.0, 0.25]])
    found = relation_kl(logits.bfloat16(), target.bfloat16())
    torch.testing.assert_close(found, relation_kl(logits, target))  # all of these are exact in half precision


def test_relation_kl_is_the_sum_of_bernoulli_divergences() -> None:
    logits = draws(3, 4).mul(3).requires_grad_(True)
    target = torch.sigmoid(draws(3, 4, seed=1))
    wanted = kl_divergence(Bernoulli(logits=logits.detach()), Bernoulli(probs=target)).sum(1)
    torch.testing.assert_close(relation_kl(logits, target), wanted)
    assert gradcheck(lambda values: relation_kl(values, target), (logits,))


def test_relation_kl_by_hand() -> None:
    logits = torch.log(torch.tensor([[3.0]], dtype=torch.float64))
    target = torch.tensor([[0.5]], dtype=torch.float64)
    assert relation_kl(logits, target).item() == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))


def test_relation_kl_with_a_one_hot_target_is_that_of_the_clamped_target() -> None:
    logits = draws(2, 3).requires_grad_(True)
    target = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    clamped = Bernoulli(probs=0.9998 * target + 0.0001)
    torch.testing.assert_close(
        relation_kl(logits, target), kl_divergence(Bernoulli(logits=logits.detach()), clamped).sum(1)
    )
    assert gradcheck(lambda values: relation_kl(values, target), (logits,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0.0, 10.0, 80.0, 1e4])
def test_relation_kl_is_finite_for_one_hot_targets_and_extreme_logits(size: float, dtype: torch.dtype) -> None:
    logits = torch.tensor([[size, -size, size, -size]], dtype=dtype, requires_grad=True)
    loss = relation_kl(logits, torch.tensor([[1.0, 0.0, 0.0, 1.0]], dtype=dtype))
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert math.isfinite(loss.item())
    assert bool(torch.isfinite(gradient).all())


@given(st.lists(st.floats(0.0001, 0.9999), min_size=1, max_size=6))
def test_relation_kl_is_zero_where_the_prediction_equals_the_target(probabilities: list[float]) -> None:
    target = torch.tensor([probabilities], dtype=torch.float64)
    assert relation_kl(torch.logit(target), target).item() == pytest.approx(0, abs=1e-12)


@given(st.lists(st.tuples(st.floats(-30, 30), st.floats(0, 1)), min_size=1, max_size=6))
def test_relation_kl_is_never_negative(pairs: list[tuple[float, float]]) -> None:
    logits, target = torch.tensor([pairs], dtype=torch.float64).unbind(2)
    assert relation_kl(logits, target).item() >= -1e-12


@given(st.integers(0, 1000))
def test_relation_bce_and_the_reverse_divergence_differ_by_the_targets_entropy(seed: int) -> None:
    logits, target = draws(2, 5, seed=seed), torch.sigmoid(draws(2, 5, seed=seed + 1))
    wanted = (
        kl_divergence(Bernoulli(probs=target), Bernoulli(logits=logits)) + Bernoulli(probs=target).entropy()
    ).mean(1)
    torch.testing.assert_close(relation_bce(logits, target), wanted)


def test_old_outputs_distillation_sees_only_the_old_outputs() -> None:
    logits, teacher = draws(3, 6).requires_grad_(True), draws(3, 4, seed=2)
    p, q = torch.sigmoid(logits.detach()[:, :4]), torch.sigmoid(teacher)
    by_hand = -(q * p.log() + (1 - q) * (1 - p).log()).mean(1)
    torch.testing.assert_close(old_outputs_distillation(logits, teacher), by_hand)
    assert gradcheck(lambda values: old_outputs_distillation(values, teacher), (logits,))
    (gradient,) = torch.autograd.grad(old_outputs_distillation(logits, teacher).sum(), logits)
    torch.testing.assert_close(gradient[:, :4], (p - q) / 4)
    assert bool((gradient[:, 4:] == 0).all())
