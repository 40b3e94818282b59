import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fcil.maths.penalties import add_fishers, ewc_penalty, fisher_diagonal, proximal_term
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


def test_fishers_of_two_tasks_are_summed() -> None:
    first, second = parameters(0, classes=2), parameters(10, classes=4)
    for found in (add_fishers(first, second), add_fishers(second, first)):
        assert torch.equal(found["body"], first["body"] + second["body"])
        assert torch.equal(found["scale"], first["scale"] + second["scale"])
        assert torch.equal(found["head"][:2], first["head"] + second["head"][:2])
        assert torch.equal(found["head"][2:], second["head"][2:])
