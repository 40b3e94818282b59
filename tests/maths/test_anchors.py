"""LANDER's formulas: anchors, the hinge over a batch, the two shares, and the learned normalisation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from fcil.maths.anchors import TEXT_LENGTH, anchor_loss, balanced_labels, random_anchors, renormalised, shares


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_an_anchor_depends_on_its_class_alone_and_has_the_length_of_a_text_embedding() -> None:
    before = torch.random.get_rng_state()
    few, more = random_anchors(["3", "7"], 512), random_anchors(["7", "x", "3"], 512)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(few, more[[2, 0]])
    assert more.norm(dim=1).tolist() == pytest.approx([TEXT_LENGTH] * 3, rel=1e-5)
    cosines = more @ more.T / TEXT_LENGTH**2
    assert cosines[~torch.eye(3, dtype=torch.bool)].abs().max() < 0.2, "nearly orthogonal"
    assert random_anchors([], 5).shape == (0, 5)


def test_the_hinge_is_on_the_batch_s_mean_and_not_on_a_sample() -> None:
    """One sample is far out (0.1 > 0.08), and the mean over both is inside: there is no gradient at all."""
    anchors = torch.zeros(2, 4, dtype=torch.float64)
    mapped = torch.tensor([[0.1**0.5] * 4, [0.0] * 4], dtype=torch.float64, requires_grad=True)
    loss = anchor_loss(mapped, anchors, 0.08)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0
    assert mapped.grad is not None
    assert not mapped.grad.any()
    assert anchor_loss(mapped, anchors, 0.03).item() == pytest.approx(0.05 - 0.03)
    assert anchor_loss(mapped[:0], anchors[:0], 0.0).item() == 0, "an empty batch"
    assert gradcheck(lambda values: anchor_loss(values, anchors, 0.01), (mapped,))


@pytest.mark.parametrize(("old", "classes", "current", "previous"), [(10, 20, 0.365, 0.978), (20, 40, 0.347, 1.242)])
def test_the_shares_are_those_of_the_released_formula(old: int, classes: int, current: float, previous: float) -> None:
    assert shares(old, classes, 0.2, 0.4) == pytest.approx((current, previous), abs=1e-3)
    assert shares(80, 100, 0.2, 0.4) == pytest.approx((0.263, 2.029), abs=1e-3)
    assert shares(old, classes, 0.4, 0.4)[0] == pytest.approx(2 * shares(old, classes, 0.2, 0.4)[0])


def test_a_network_sees_images_by_the_learned_normalisation() -> None:
    images = draws(2, 3, 4, 4)
    mean, deviation, own_mean, own_deviation = (draws(3, 1, 1, seed=seed).exp() for seed in range(4))
    given = renormalised(images, mean, deviation, own_mean, own_deviation)
    torch.testing.assert_close((given - own_mean) / own_deviation, (images - mean) / deviation)
    same = renormalised(images, own_mean, own_deviation, own_mean, own_deviation)
    torch.testing.assert_close(same, images)
    assert bool(renormalised(images, mean, 0 * deviation, own_mean, own_deviation).isfinite().all())


@pytest.mark.parametrize(("count", "classes"), [(256, 20), (64, 10), (5, 8), (6, 3)])
def test_labels_come_in_turn_and_the_rest_is_random(count: int, classes: int) -> None:
    labels = balanced_labels(count, classes, torch.Generator().manual_seed(1))
    assert labels.shape == (count,)
    assert int(labels.max()) < classes
    each = count // classes
    assert bool((torch.bincount(labels, minlength=classes) >= each).all())
    assert labels[: each * classes].tolist() == list(range(classes)) * each
