"""Re-Fed's importance: gradient norms against one backward pass per sample, and a pull that holds."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fcil.maths.importance import accumulated, head_gradient_norms, network_gradient_norms, pull_strength, pulled

LABELS = torch.arange(7) % 3
TYPES = [torch.float32, torch.float64]


def draws(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).to(dtype).eval()
    draw = torch.Generator().manual_seed(5)
    for parameter in net.parameters():
        nn.init.uniform_(parameter, -1, 1, generator=draw)
    return net


def norms_by_hand(net: nn.Module, images: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    """One backward pass a sample."""
    found = []
    for image, label in zip(images, LABELS, strict=True):
        gradients = torch.autograd.grad(F.cross_entropy(net(image[None]), label[None]), parameters)
        found.append(torch.cat([gradient.flatten() for gradient in gradients]).norm())
    return torch.stack(found)


@pytest.mark.parametrize("dtype", TYPES)
def test_the_norm_of_the_last_layer_is_exact(dtype: torch.dtype) -> None:
    net, images = network(dtype), draws(7, 4, dtype=dtype)
    features = net[:3](images).detach()
    found = head_gradient_norms(features, net(images).detach(), LABELS)
    torch.testing.assert_close(found, norms_by_hand(net, images, list(net[3].parameters())))


@pytest.mark.parametrize("dtype", TYPES)
def test_the_norm_of_the_whole_network_is_exact(dtype: torch.dtype) -> None:
    net, images = network(dtype), draws(7, 4, dtype=dtype)
    found = network_gradient_norms(net, images, LABELS)
    torch.testing.assert_close(found, norms_by_hand(net, images, list(net.parameters())))
    assert network_gradient_norms(net, images[:0], LABELS[:0]).tolist() == []


def test_parameters_that_are_not_trained_do_not_count() -> None:
    net, images = network(), draws(7, 4)
    net[:3].requires_grad_(False)
    torch.testing.assert_close(
        network_gradient_norms(net, images, LABELS), norms_by_hand(net, images, list(net[3].parameters()))
    )


def test_a_sample_that_is_surely_right_counts_for_nothing_and_one_that_is_surely_wrong_most() -> None:
    logits = torch.tensor([[40.0, 0.0], [40.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    features = torch.tensor([[2.0], [2.0], [2.0]], dtype=torch.float64)
    found = head_gradient_norms(features, logits, torch.tensor([0, 1, 0]))
    assert found.tolist() == pytest.approx([0.0, 10**0.5, 2.5**0.5])  # sqrt(2) and sqrt(1/2), times sqrt(2^2 + 1)


def test_the_pull_grows_without_bound_as_lambda_goes_to_zero() -> None:
    assert [pull_strength(share) for share in (1.0, 0.5, 0.25)] == [0.0, 0.5, 1.5]
    assert pull_strength(1e-12) > 1e11


@given(st.floats(0.001, 10), st.floats(0, 100))
def test_an_implicit_step_ends_where_its_own_pull_is_in_balance(rate: float, pull: float) -> None:
    value, gradient, anchor = draws(5), draws(5, seed=1), draws(5, seed=2)
    after = pulled(value, gradient, anchor, rate, pull)
    torch.testing.assert_close(after, value - rate * (gradient + pull * (after - anchor)), rtol=1e-7, atol=1e-7)


def test_an_explicit_step_is_the_printed_one_and_both_agree_where_the_pull_is_weak() -> None:
    value, gradient, anchor = draws(5), draws(5, seed=1), draws(5, seed=2)
    explicit = pulled(value, gradient, anchor, 0.1, 0.3, explicit=True)
    torch.testing.assert_close(explicit, value - 0.1 * (gradient + 0.3 * (value - anchor)))
    for rate in (1e-2, 1e-4):
        pair = [pulled(value, gradient, anchor, rate, 0.3, explicit=explicit) for explicit in (False, True)]
        torch.testing.assert_close(*pair, rtol=0, atol=2 * rate**2)


def test_a_strong_pull_holds_the_model_at_the_anchor_where_the_explicit_step_diverges() -> None:
    value, gradient, anchor = draws(5), draws(5, seed=1), draws(5, seed=2)
    torch.testing.assert_close(pulled(value, gradient, anchor, 0.01, 1e12), anchor)
    far = value
    for _ in range(20):
        far = pulled(far, torch.zeros(5), anchor, 1.0, 2.5, explicit=True)
    assert (far - anchor).norm() > 100 * (value - anchor).norm()


def test_later_passes_count_less() -> None:
    norms = [draws(4, seed=seed).abs() for seed in range(3)]
    torch.testing.assert_close(accumulated(norms), norms[0] + norms[1] / 2 + norms[2] / 3)
