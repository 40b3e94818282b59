import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fcil.maths.owned import class_counts, counted_cross_entropy

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
