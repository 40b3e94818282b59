import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck
from torch.distributions import Categorical, kl_divergence

from fcil.maths.distillation import distillation

TYPES = [torch.float32, torch.float64]


def draws(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_the_divergence_by_hand() -> None:
    logits = 2 * torch.log(torch.tensor([[1.0, 3.0, 9.0]], dtype=torch.float64))
    teacher = 2 * torch.log(torch.tensor([[1.0, 1.0]], dtype=torch.float64))
    wanted = (math.log(0.5 / 0.25) + math.log(0.5 / 0.75)) / 2  # at T = 2 the softmaxes are 1/4, 3/4 and 1/2, 1/2
    assert distillation(logits, teacher).item() == pytest.approx(wanted)
    assert distillation(logits, teacher, rescaled=True).item() == pytest.approx(4 * wanted)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 10.0])
def test_the_divergence_is_torchs(temperature: float) -> None:
    logits, teacher = draws(4, 6), draws(4, 4, seed=1)
    wanted = kl_divergence(Categorical(logits=teacher / temperature), Categorical(logits=logits[:, :4] / temperature))
    torch.testing.assert_close(distillation(logits, teacher, temperature), wanted)


def test_the_divergence_has_the_gradient_of_the_papers_cross_entropy() -> None:
    """LwF: recorded probabilities to the power 1 / T, normalised again, and so for the own ones."""
    logits, teacher = draws(3, 5).requires_grad_(True), draws(3, 3, seed=1)
    recorded = F.softmax(teacher, 1) ** 0.5
    own = F.softmax(logits[:, :3], 1) ** 0.5
    paper = -(recorded / recorded.sum(1, keepdim=True) * torch.log(own / own.sum(1, keepdim=True))).sum()
    (wanted,) = torch.autograd.grad(paper, logits)
    (found,) = torch.autograd.grad(distillation(logits, teacher).sum(), logits)
    torch.testing.assert_close(found, wanted)
    assert gradcheck(lambda values: distillation(values, teacher), (logits,))


def test_rescaled_its_gradient_keeps_its_size_at_a_high_temperature() -> None:
    """T^2 KL tends to half the variance of z - teacher over C: the point of the factor."""
    logits, teacher = draws(1, 5), draws(1, 5, seed=1)
    limit = (logits - teacher).var(1, unbiased=False).item() / 2
    assert distillation(logits, teacher, 1e3, rescaled=True).item() == pytest.approx(limit, rel=0.01)
    assert distillation(logits, teacher, 1e3).item() == pytest.approx(limit / 1e6, rel=0.01)


@given(st.integers(0, 1000), st.floats(-30, 30))
def test_the_divergence_is_never_negative_and_blind_to_a_common_shift(seed: int, shift: float) -> None:
    logits, teacher = draws(2, 4, seed=seed).mul(5), draws(2, 3, seed=seed + 1).mul(5)
    assert distillation(logits, teacher).min() >= -1e-12
    assert distillation(teacher + shift, teacher).abs().max() <= 1e-10


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("old_classes", [0, 1])
def test_none_or_one_old_output_has_nothing_to_distil(old_classes: int, dtype: torch.dtype) -> None:
    logits = draws(3, 4, dtype=dtype).requires_grad_(True)
    loss = distillation(logits, draws(3, old_classes, seed=1, dtype=dtype))
    assert loss.dtype == dtype
    assert loss.tolist() == [0.0, 0.0, 0.0]
    assert not torch.autograd.grad(loss.sum(), logits)[0].any()


@pytest.mark.parametrize("dtype", TYPES)
def test_the_divergence_is_finite_for_extreme_logits(dtype: torch.dtype) -> None:
    logits = torch.tensor([[1e4, -1e4]], dtype=dtype, requires_grad=True)
    loss = distillation(logits, -logits.detach())
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert loss.item() == pytest.approx(1e4)
    assert bool(gradient.isfinite().all())
