"""The tests of a method of your own: those that ours have to pass, and its formula by hand.

pytest examples/test_own_method.py
"""

from __future__ import annotations

import math

import pytest
import torch
from own_method import balanced_cross_entropy

from fcil.testing import MethodContract


class TestBalanced(MethodContract):
    """Learning, memory, traffic, workers, resuming, odd scenarios: docs/architecture.md has the list."""

    method = "balanced"


def test_without_an_opinion_the_classes_have_their_shares() -> None:
    """Equal outputs, three samples of the first class, one of the second, none of the third: 3/4, 1/4 and 0."""
    logits = torch.zeros(2, 3, requires_grad=True)
    loss = balanced_cross_entropy(logits, torch.tensor([0, 1]), torch.tensor([3, 1, 0]), strength=1.0)
    assert loss.tolist() == pytest.approx([-math.log(3 / 4), -math.log(1 / 4)])
    loss.sum().backward()
    assert logits.grad is not None
    assert logits.grad[:, 2].tolist() == [0, 0]  # what a client has no images of it leaves to the others


def test_without_strength_it_is_a_softmax_over_the_classes_that_are_there() -> None:
    """Two classes with equal outputs share alike, however many samples each has."""
    loss = balanced_cross_entropy(torch.zeros(1, 3), torch.tensor([1]), torch.tensor([3, 1, 0]), strength=0.0)
    assert loss.item() == pytest.approx(math.log(2))
