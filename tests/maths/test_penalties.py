import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.distributions import Categorical, kl_divergence

from fcil.errors import FederationError
from fcil.maths.losses import binary_cross_entropy, one_hot
from fcil.maths.penalties import (
    add_fishers,
    average_fishers,
    ewc_penalty,
    fisher_diagonal,
    proximal_term,
    softened_divergence,
)
from fcil.models import Classifier, ModelConfig

TYPES = [torch.float32, torch.float64]


def draws(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def parameters(seed: int, classes: int = 3, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    return {
        "body": draws(2, 2, seed=seed, dtype=dtype),
        "head": draws(5, 2, seed=seed + 1, dtype=dtype)[:classes],
        "scale": draws(seed=seed + 2, dtype=dtype),
    }


def small_network(dtype: torch.dtype = torch.float64) -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3)).to(dtype).eval()
    draw = torch.Generator().manual_seed(5)
    for parameter in net.parameters():
        nn.init.uniform_(parameter, -1, 1, generator=draw)
    net[1].running_mean.uniform_(-1, 1, generator=draw)
    return net


def fisher_by_hand(net: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """One backward pass a sample."""
    total = {name: torch.zeros_like(value) for name, value in net.named_parameters()}
    for image, label in zip(images, labels, strict=True):
        net.zero_grad()
        F.cross_entropy(net(image[None]), label[None]).backward()
        for name, value in net.named_parameters():
            total[name] += value.grad**2 / len(labels)
    return total


@pytest.mark.parametrize("dtype", TYPES)
def test_the_proximal_term_is_half_mu_times_the_squared_distance(dtype: torch.dtype) -> None:
    weights, reference = parameters(0, dtype=dtype), parameters(10, dtype=dtype)
    distance = sum(
        (a - b) ** 2
        for name in weights
        for a, b in zip(weights[name].reshape(-1).tolist(), reference[name].reshape(-1).tolist(), strict=True)
    )
    found = proximal_term(weights, {**reference, "running_mean": torch.ones(7)})
    assert found.dtype == dtype
    assert found.shape == ()
    assert found.item() == pytest.approx(0.005 * distance, rel=1e-6)


def test_the_proximal_term_pulls_towards_the_global_model() -> None:
    weights = {name: value.requires_grad_(True) for name, value in parameters(0).items()}
    reference = parameters(10)
    gradients = torch.autograd.grad(proximal_term(weights, reference, mu=0.3), list(weights.values()))
    for (name, value), gradient in zip(weights.items(), gradients, strict=True):
        torch.testing.assert_close(gradient, 0.3 * (value.detach() - reference[name]))


def test_at_the_global_model_the_proximal_term_and_its_gradient_vanish() -> None:
    weights = {name: value.requires_grad_(True) for name, value in parameters(0).items()}
    term = proximal_term(weights, {name: value.detach().clone() for name, value in weights.items()})
    assert term.item() == 0
    assert not any(gradient.any() for gradient in torch.autograd.grad(term, list(weights.values())))


@pytest.mark.parametrize("dtype", TYPES)
def test_the_penalty_weighs_each_weight_by_its_importance(dtype: torch.dtype) -> None:
    weights, anchor = parameters(0, dtype=dtype), parameters(10, dtype=dtype)
    fisher = {name: value.abs() for name, value in parameters(20, dtype=dtype).items()}
    wanted = 0.0
    for name in weights:
        rows = (values.reshape(-1).tolist() for values in (weights[name], anchor[name], fisher[name]))
        wanted += sum(f * (w - a) ** 2 for w, a, f in zip(*rows, strict=True)) / 2
    found = ewc_penalty(weights, anchor, fisher, strength=1.0)
    assert found.dtype == dtype
    assert found.item() == pytest.approx(wanted, rel=1e-5)
    assert ewc_penalty(weights, anchor, fisher).item() == pytest.approx(1000 * wanted, rel=1e-5)


def test_with_equal_importance_the_penalty_is_the_proximal_term() -> None:
    weights, anchor = parameters(0), parameters(10)
    ones = {name: torch.ones_like(value) for name, value in weights.items()}
    torch.testing.assert_close(ewc_penalty(weights, anchor, ones, 0.3), proximal_term(weights, anchor, 0.3))


def test_rows_that_the_head_grew_are_free() -> None:
    weights = {name: value.requires_grad_(True) for name, value in parameters(0, classes=5).items()}
    anchor, fisher = parameters(10), {name: value.abs() for name, value in parameters(20).items()}
    penalty = ewc_penalty(weights, anchor, fisher)
    (gradient,) = torch.autograd.grad(penalty, weights["head"])
    torch.testing.assert_close(gradient[:3], 1000 * fisher["head"] * (weights["head"].detach()[:3] - anchor["head"]))
    assert torch.equal(gradient[3:], torch.zeros(2, 2, dtype=torch.float64))


def test_an_anchor_may_have_more_rows_than_the_importance() -> None:
    fisher = {"head": torch.ones(1, 2)}
    weights, anchor = {"head": torch.full((3, 2), 2.0)}, {"head": torch.ones(2, 2)}
    assert ewc_penalty(weights, anchor, fisher, 1.0).item() == 1.0


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("samples", "chunk"), [(1, 16), (7, 3), (7, 7), (7, 1)])
def test_the_fisher_diagonal_equals_one_backward_pass_a_sample(samples: int, chunk: int, dtype: torch.dtype) -> None:
    net, images = small_network(dtype), draws(samples, 3, dtype=dtype)
    labels = torch.arange(samples) % 3
    found = fisher_diagonal(net, images, labels, chunk=chunk)
    wanted = fisher_by_hand(net, images, labels)
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        assert not value.requires_grad
        torch.testing.assert_close(value, wanted[name])


def test_the_fisher_diagonal_of_a_logistic_model_in_closed_form() -> None:
    """z = W x: the gradient of a sample is (p - onehot) x^T."""
    net = nn.Linear(2, 3, bias=False).double()
    images, labels = draws(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    error = F.softmax(net(images), 1).detach() - torch.eye(3, dtype=torch.float64)[labels]
    wanted = (error[:, :, None] * images[:, None, :]).square().mean(0)
    torch.testing.assert_close(fisher_diagonal(net, images, labels)["weight"], wanted)


def test_another_likelihood_can_be_given() -> None:
    net = nn.Linear(2, 3, bias=False).double()
    images, labels = draws(4, 2), torch.tensor([0, 1, 2, 0])
    targets = one_hot(labels, 3, images)
    error = (torch.sigmoid(net(images)).detach() - targets) / 3
    wanted = (error[:, :, None] * images[:, None, :]).square().mean(0)
    torch.testing.assert_close(fisher_diagonal(net, images, targets, binary_cross_entropy)["weight"], wanted)


def test_the_fisher_diagonal_of_a_resnet_equals_one_backward_pass_a_sample() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Classifier(ModelConfig(width=2), [0.5], [0.25], classes=3).double().eval()
    images, labels = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(1)).double(), torch.arange(3)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found, wanted = fisher_diagonal(net, images, labels, chunk=2), fisher_by_hand(net, images, labels)
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name])
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_without_samples_nothing_is_important() -> None:
    found = fisher_diagonal(small_network(), torch.zeros(0, 3).double(), torch.zeros(0, dtype=torch.int64))
    assert not any(value.any() for value in found.values())


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 100))
def test_averaged_by_samples_it_is_the_fisher_of_all_samples(first: int, second: int, seed: int) -> None:
    net, images = small_network(), draws(first + second, 3, seed=seed)
    labels = torch.arange(first + second) % 3
    parts = [fisher_diagonal(net, images[part], labels[part]) for part in (slice(first), slice(first, None))]
    found, whole = average_fishers(parts, [first, second]), fisher_diagonal(net, images, labels)
    for name, value in found.items():
        torch.testing.assert_close(value, whole[name])


def test_rows_that_a_client_lacked_count_as_zero() -> None:
    narrow, wide = {"head": torch.full((1, 2), 4.0)}, {"head": torch.full((3, 2), 8.0)}
    for fishers, samples in (([narrow, wide], [1, 3]), ([wide, narrow], [3, 1])):
        assert average_fishers(fishers, samples)["head"][:, 0].tolist() == [7.0, 6.0, 6.0]


def test_fishers_of_two_tasks_are_summed() -> None:
    first, second = parameters(0, classes=2), parameters(10, classes=4)
    for found in (add_fishers(first, second), add_fishers(second, first)):
        assert torch.equal(found["body"], first["body"] + second["body"])
        assert torch.equal(found["scale"], first["scale"] + second["scale"])
        assert torch.equal(found["head"][:2], first["head"] + second["head"][:2])
        assert torch.equal(found["head"][2:], second["head"][2:])


def test_no_fisher_and_no_samples_are_refused() -> None:
    with pytest.raises(FederationError, match="no model state"):
        average_fishers([], [])
    with pytest.raises(FederationError, match="weights"):
        average_fishers([parameters(0), parameters(1)], [3, 0])


def test_the_divergence_by_hand() -> None:
    logits = 2 * torch.log(torch.tensor([[1.0, 3.0, 9.0]], dtype=torch.float64))
    teacher = 2 * torch.log(torch.tensor([[1.0, 1.0]], dtype=torch.float64))
    wanted = (math.log(0.5 / 0.25) + math.log(0.5 / 0.75)) / 2  # at T = 2 the softmaxes are 1/4, 3/4 and 1/2, 1/2
    assert softened_divergence(logits, teacher).item() == pytest.approx(wanted)
    assert softened_divergence(logits, teacher, rescaled=True).item() == pytest.approx(4 * wanted)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 10.0])
def test_the_divergence_is_torchs(temperature: float) -> None:
    logits, teacher = draws(4, 6), draws(4, 4, seed=1)
    wanted = kl_divergence(Categorical(logits=teacher / temperature), Categorical(logits=logits[:, :4] / temperature))
    torch.testing.assert_close(softened_divergence(logits, teacher, temperature), wanted)


def test_the_divergence_has_the_gradient_of_the_papers_cross_entropy() -> None:
    """LwF: recorded probabilities to the power 1 / T, normalised again, and so for the own ones."""
    logits, teacher = draws(3, 5).requires_grad_(True), draws(3, 3, seed=1)
    recorded = F.softmax(teacher, 1) ** 0.5
    own = F.softmax(logits[:, :3], 1) ** 0.5
    paper = -(recorded / recorded.sum(1, keepdim=True) * torch.log(own / own.sum(1, keepdim=True))).sum()
    (wanted,) = torch.autograd.grad(paper, logits)
    (found,) = torch.autograd.grad(softened_divergence(logits, teacher).sum(), logits)
    torch.testing.assert_close(found, wanted)
    assert gradcheck(lambda values: softened_divergence(values, teacher), (logits,))


def test_rescaled_its_gradient_keeps_its_size_at_a_high_temperature() -> None:
    """T^2 KL tends to half the variance of z - teacher over C: the point of the factor."""
    logits, teacher = draws(1, 5), draws(1, 5, seed=1)
    limit = (logits - teacher).var(1, unbiased=False).item() / 2
    assert softened_divergence(logits, teacher, 1e3, rescaled=True).item() == pytest.approx(limit, rel=0.01)
    assert softened_divergence(logits, teacher, 1e3).item() == pytest.approx(limit / 1e6, rel=0.01)


@given(st.integers(0, 1000), st.floats(-30, 30))
def test_the_divergence_is_never_negative_and_blind_to_a_common_shift(seed: int, shift: float) -> None:
    logits, teacher = draws(2, 4, seed=seed).mul(5), draws(2, 3, seed=seed + 1).mul(5)
    assert softened_divergence(logits, teacher).min() >= -1e-12
    assert softened_divergence(teacher + shift, teacher).abs().max() <= 1e-10


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("old_classes", [0, 1])
def test_none_or_one_old_output_has_nothing_to_distil(old_classes: int, dtype: torch.dtype) -> None:
    logits = draws(3, 4, dtype=dtype).requires_grad_(True)
    loss = softened_divergence(logits, draws(3, old_classes, seed=1, dtype=dtype))
    assert loss.dtype == dtype
    assert loss.tolist() == [0.0, 0.0, 0.0]
    assert not torch.autograd.grad(loss.sum(), logits)[0].any()


@pytest.mark.parametrize("dtype", TYPES)
def test_the_divergence_is_finite_for_extreme_logits(dtype: torch.dtype) -> None:
    logits = torch.tensor([[1e4, -1e4]], dtype=dtype, requires_grad=True)
    loss = softened_divergence(logits, -logits.detach())
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert loss.item() == pytest.approx(1e4)
    assert bool(gradient.isfinite().all())
