import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck

from fcil.maths.compensation import compensation_weights, gradient_measure
from fcil.maths.losses import binary_cross_entropy, cross_entropy, one_hot
from fcil.maths.relation import relation_bce, relation_target

CASES = ["nolearned", "mixed", "mixed_old", "nolearned_old", "onlynew_old", "onlyold_old", "dup_learned"]


def near(found: Tensor, wanted: Tensor, relative: float = 1e-6) -> bool:
    return bool((found - wanted).abs().max() <= relative * wanted.abs().max())


def weights_of(golden, case: str, logits: Tensor) -> Tensor:
    """Weights under the `official` edition: one while a client has learned nothing."""
    labels, learned = golden[f"{case}__labels"], golden[f"{case}__learned"]
    if len(learned) == 0:
        return torch.ones(len(labels))
    return compensation_weights(gradient_measure(logits, labels), torch.isin(labels, learned))


def current_loss(golden, case: str, logits: Tensor) -> Tensor:
    target = one_hot(golden[f"{case}__labels"], logits.shape[1], logits)
    return (weights_of(golden, case, logits) * binary_cross_entropy(logits, target)).mean()


@pytest.mark.parametrize("case", CASES)
def test_compensation_weights_equal_the_released_code(golden_losses, case: str) -> None:
    wanted = golden_losses[f"{case}__w"].squeeze(1)
    torch.testing.assert_close(weights_of(golden_losses, case, golden_losses["logits"]), wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize("case", CASES)
def test_total_loss_and_gradient_equal_the_released_code(golden_losses, case: str) -> None:
    logits = golden_losses["logits"].clone().requires_grad_(True)
    loss = current_loss(golden_losses, case, logits)
    if case.endswith("_old"):
        target = relation_target(golden_losses[f"{case}__labels"], golden_losses["old_logits"], logits.shape[1])
        loss = 0.5 * loss + 0.5 * relation_bce(logits, target).mean()
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.item() == pytest.approx(golden_losses[f"{case}__loss"].item(), rel=1e-6)
    assert near(gradient, golden_losses[f"{case}__grad"])


@pytest.mark.parametrize("case", [case for case in CASES if case.endswith("_old")])
def test_compensated_and_distillation_parts_equal_the_released_code(golden_losses, case: str) -> None:
    logits = golden_losses["logits"].clone().requires_grad_(True)
    target = relation_target(golden_losses[f"{case}__labels"], golden_losses["old_logits"], logits.shape[1])
    torch.testing.assert_close(target, golden_losses[f"{case}__distill_target"], rtol=1e-6, atol=0)
    distillation = relation_bce(logits, target).mean()
    (gradient,) = torch.autograd.grad(distillation, logits)
    assert distillation.item() == pytest.approx(golden_losses[f"{case}__distill_loss"].item(), rel=1e-6)
    assert near(gradient, golden_losses[f"{case}__distill_grad"])
    current = current_loss(golden_losses, case, golden_losses["logits"])
    assert current.item() == pytest.approx(golden_losses[f"{case}__cur_loss"].item(), rel=1e-6)


def random_logits(rows: int = 3, classes: int = 5, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, classes, generator=draw, dtype=torch.float64).mul(3).requires_grad_(True)


def test_one_hot_follows_the_type_of_its_model() -> None:
    wanted = torch.tensor([[0, 0, 1], [1, 0, 0]], dtype=torch.float64)
    found = one_hot(torch.tensor([2, 0]), 3, torch.zeros(1, dtype=torch.float64))
    assert found.dtype == torch.float64
    assert torch.equal(found, wanted)


def test_binary_cross_entropy_is_the_mean_of_minus_log_likelihoods() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)], [math.log(4.0), 0.0]], dtype=torch.float64)
    targets = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    by_hand = torch.tensor(
        [(-math.log(0.5) - math.log(0.25)) / 2, (-math.log(0.8) - math.log(0.5)) / 2], dtype=torch.float64
    )
    torch.testing.assert_close(binary_cross_entropy(logits, targets), by_hand)


def test_binary_cross_entropy_has_the_gradient_of_its_differences() -> None:
    logits = random_logits()
    targets = torch.rand(3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert gradcheck(lambda values: binary_cross_entropy(values, targets), (logits,))
    (gradient,) = torch.autograd.grad(binary_cross_entropy(logits, targets).sum(), logits)
    torch.testing.assert_close(gradient, (torch.sigmoid(logits.detach()) - targets) / 5)


def test_binary_cross_entropy_stays_finite_for_extreme_logits() -> None:
    logits = torch.tensor([[1000.0, -1000.0], [-1000.0, 1000.0]])
    found = binary_cross_entropy(logits, torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    assert found.tolist() == [0.0, 1000.0]


def test_cross_entropy_is_minus_the_log_of_the_softmax() -> None:
    logits = torch.log(torch.tensor([[1.0, 2.0, 5.0], [3.0, 3.0, 2.0]], dtype=torch.float64))
    found = cross_entropy(logits, torch.tensor([2, 0]))
    torch.testing.assert_close(found, torch.tensor([-math.log(5 / 8), -math.log(3 / 8)], dtype=torch.float64))


def test_cross_entropy_has_the_gradient_of_its_differences() -> None:
    logits, labels = random_logits(), torch.tensor([4, 0, 2])
    assert gradcheck(lambda values: cross_entropy(values, labels), (logits,))
    (gradient,) = torch.autograd.grad(cross_entropy(logits, labels).sum(), logits)
    torch.testing.assert_close(gradient, F.softmax(logits.detach(), 1) - torch.eye(5, dtype=torch.float64)[labels])


def test_losses_are_one_value_an_example_and_do_not_mix_examples() -> None:
    logits, labels = random_logits(4).detach(), torch.tensor([0, 1, 2, 3])
    targets = torch.eye(5, dtype=torch.float64)[labels]
    for row in range(4):
        alone = slice(row, row + 1)
        assert torch.equal(
            binary_cross_entropy(logits, targets)[alone], binary_cross_entropy(logits[alone], targets[alone])
        )
        assert torch.equal(cross_entropy(logits, labels)[alone], cross_entropy(logits[alone], labels[alone]))
