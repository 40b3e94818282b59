import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fcil.maths.losses import binary_cross_entropy
from fcil.maths.owned import class_counts, counted_cross_entropy, counted_logits, own_outputs
from fcil.maths.relation import distilled_bce, relation_bce, relation_kl

pytestmark = pytest.mark.numeric


def draws(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def test_counts_by_hand() -> None:
    assert class_counts(torch.tensor([3, 0, 3, 3]), 5).tolist() == [1, 0, 0, 3, 0]


def test_the_loss_by_hand() -> None:
    logits, counts = torch.tensor([[math.log(2.0), 0.0, 5.0]], dtype=torch.float64), torch.tensor([1, 6, 0])
    # 2 x 1 against 1 x 6, the third class left out
    assert counted_cross_entropy(logits, torch.tensor([0]), counts).item() == pytest.approx(-math.log(2 / 8))
    # or counted as half a sample: 2, 6 and exp(5) / 2
    wanted = -math.log(2 / (8 + math.exp(5) / 2))
    assert counted_cross_entropy(logits, torch.tensor([0]), counts, absent=0.5).item() == pytest.approx(wanted)


def test_with_equal_counts_it_is_the_cross_entropy_over_the_own_classes() -> None:
    logits, labels = draws(6, 5), torch.tensor([0, 1, 3, 0, 3, 1])
    found = counted_cross_entropy(logits, labels, torch.tensor([4, 4, 0, 4, 0]))
    own = F.cross_entropy(logits[:, [0, 1, 3]], torch.tensor([0, 1, 2, 0, 2, 1]), reduction="none")
    torch.testing.assert_close(found, own)


def test_a_class_that_is_left_out_has_no_gradient() -> None:
    logits = draws(4, 3).requires_grad_(True)
    counted_cross_entropy(logits, torch.tensor([0, 1, 0, 1]), torch.tensor([9, 2, 0])).sum().backward()
    assert logits.grad is not None
    assert bool((logits.grad[:, 2] == 0).all())
    assert bool((logits.grad[:, :2] != 0).all())


def test_what_minimises_it_is_blind_to_the_shares_of_the_classes() -> None:
    """One feature value for all: nine samples of one class and one of the other leave equal logits."""
    logits = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    labels, counts = torch.tensor([0] * 9 + [1]), torch.tensor([9, 1])
    counted_cross_entropy(logits.expand(10, 2), labels, counts).mean().backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, torch.zeros_like(logits))


def test_counted_logits_by_hand_whatever_stands_before_the_classes() -> None:
    counts = torch.tensor([1, 0, 4])
    assert counted_logits(torch.tensor([[2.0, 9.0, 0.0]]), counts).tolist() == [
        [2.0, -math.inf, pytest.approx(1.386294)]
    ]
    neighbours = draws(2, 3, 3)
    for sample, near in zip(counted_logits(neighbours, counts), neighbours, strict=True):
        torch.testing.assert_close(sample, counted_logits(near, counts))
    assert counted_logits(torch.empty(2, 0, 3), counts).shape == (2, 0, 3)


def test_outputs_that_stay_are_those_held_and_those_a_teacher_has() -> None:
    counts = torch.tensor([0, 5, 0, 0, 2])
    assert own_outputs(counts).tolist() == [1, 4]
    assert own_outputs(counts, taught=3).tolist() == [0, 1, 2, 4]
    assert own_outputs(counts, taught=5).tolist() == [0, 1, 2, 3, 4]
    assert counts.tolist() == [0, 5, 0, 0, 2]


def test_a_binary_cross_entropy_over_some_outputs_by_hand() -> None:
    """Sigmoids of 1/2, 3/4 and 1/3 with the label 1: the first output is left out, and so is its share of the mean."""
    logits = torch.tensor([[0.0, math.log(3.0), -math.log(2.0)]], dtype=torch.float64)
    kept, labels = torch.tensor([1, 2]), torch.tensor([1])
    wanted = -(math.log(3 / 4) + math.log(2 / 3)) / 2
    assert binary_cross_entropy(logits, torch.tensor([[0.0, 1.0, 0.0]]).double(), kept).item() == pytest.approx(wanted)
    assert distilled_bce(logits, labels, None, kept).item() == pytest.approx(wanted)
    # a teacher that gives the second output 1/2, though the sample is of its class
    teacher = torch.zeros(1, 2, dtype=torch.float64)
    taught = -(math.log(3 / 4) / 2 + math.log(1 / 4) / 2 + math.log(2 / 3)) / 2
    assert distilled_bce(logits, labels, teacher, kept).item() == pytest.approx(taught)


def test_relation_divergences_over_some_outputs_by_hand() -> None:
    """Sigmoids of 1/2 and 3/4 with the targets 1/4 and 1/2: with the second output alone."""
    logits = torch.tensor([[0.0, math.log(3.0)]], dtype=torch.float64)
    target, kept = torch.tensor([[0.25, 0.5]], dtype=torch.float64), torch.tensor([1])
    assert relation_bce(logits, target, kept).item() == pytest.approx(-(math.log(3 / 4) + math.log(1 / 4)) / 2)
    assert relation_kl(logits, target, kept).item() == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    both = relation_kl(logits, target).item() - relation_kl(logits, target, kept).item()
    assert both == pytest.approx(0.5 * math.log(2.0) + 0.5 * math.log(0.5 / 0.75))  # a sum: nothing is divided
