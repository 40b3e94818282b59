"""MFCL's formulas by hand: balance, distance of normal distributions, blur, and features that a head looks at."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.distributions import Normal, kl_divergence

from fcil.maths.generated import balance_loss, blurred, gaussian_gap, roughness, weighted_distance


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_balance_by_hand_is_0_for_all_classes_alike_and_1_for_a_single_one() -> None:
    even = torch.tensor([[50.0, 0.0], [0.0, 50.0]], dtype=torch.float64)
    assert balance_loss(even).item() == pytest.approx(0, abs=1e-12)
    assert balance_loss(torch.tensor([[60.0, 0.0, 0.0]] * 3, dtype=torch.float64)).item() == pytest.approx(1)
    three = torch.log(torch.tensor([[0.6, 0.4], [0.9, 0.1]], dtype=torch.float64))
    expected = 1 + (0.75 * math.log(0.75) + 0.25 * math.log(0.25)) / math.log(2)
    assert balance_loss(three).item() == pytest.approx(expected)
    assert balance_loss(torch.ones(3, 1)).item() == 0, "one class is always balanced"
    assert gradcheck(balance_loss, (draws(4, 3).requires_grad_(True),))


def test_the_gap_is_the_divergence_of_the_batch_from_the_running_statistics() -> None:
    mean, kept_mean, variance, kept_variance = draws(5), draws(5, seed=1), draws(5, seed=2).exp(), draws(5).exp()
    kept, batch = Normal(kept_mean, kept_variance.sqrt()), Normal(mean, variance.sqrt())
    expected = kl_divergence(kept, batch).mean()
    torch.testing.assert_close(gaussian_gap(mean, variance, kept_mean, kept_variance), expected)
    # ln(2) + (1 + 3^2) / (2 * 2^2) - 1/2, by hand
    by_hand = gaussian_gap(*(torch.tensor([value], dtype=torch.float64) for value in (3, 4, 0, 1)))
    assert by_hand.item() == pytest.approx(math.log(2) + 10 / 8 - 0.5)
    assert bool(gaussian_gap(*(torch.zeros(2),) * 4).isfinite()), "dead channels"


def test_the_blur_by_hand() -> None:
    """A single bright pixel shows the kernel; an even image stays as it is, at its edges too."""
    image = torch.zeros(1, 2, 7, 7, dtype=torch.float64)
    image[0, 0, 3, 3] = 1
    side = [math.exp(-((d / 2) ** 2)) for d in (-2, -1, 0, 1, 2)]
    found = blurred(image)
    for row in range(5):
        for column in range(5):
            expected = side[row] * side[column] / sum(side) ** 2
            assert found[0, 0, row + 1, column + 1].item() == pytest.approx(expected)
    assert not found[0, 1].any(), "channels do not mix"
    even = torch.full((1, 1, 3, 3), 0.25, dtype=torch.float64)
    torch.testing.assert_close(blurred(even), even)


def test_roughness_is_per_image_and_nothing_for_an_even_one() -> None:
    rough, even = draws(2, 3, 6, 6), torch.ones(1, 3, 6, 6, dtype=torch.float64)
    found = roughness(torch.cat([rough, even]))
    assert found.shape == (3,)
    assert found[2].item() == pytest.approx(0)
    assert found[0].item() == pytest.approx(((rough - blurred(rough))[0] ** 2).mean().item())


def test_the_weighted_distance_by_hand_ignores_directions_that_the_head_does_not_see() -> None:
    weight = torch.tensor([[1.0, 0.0, 0.0], [1.0, 2.0, 0.0]])
    features, old = torch.tensor([[1.0, 1.0, 9.0], [0.0, 0.0, 5.0]]), torch.zeros(2, 3)
    assert weighted_distance(features, old, weight).tolist() == [(1 + 9) / 2, 0]
