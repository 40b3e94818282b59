from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fcil.maths.feature_noise import bounded_noise, class_variances, feature_radius, noise_shape


def some_features() -> tuple[torch.Tensor, torch.Tensor]:
    """Return features of three classes, one of which has a single example."""
    draw = torch.Generator().manual_seed(2)
    labels = torch.tensor([7, 3, 7, 5, 3, 7, 3, 3])
    return torch.randn(8, 6, generator=draw, dtype=torch.float64) * 3 + 1, labels


def covariances() -> dict[int, np.ndarray]:
    features, labels = some_features()
    return {label: np.cov(features[labels == label].numpy().T) for label in (3, 7)}


def test_variances_are_the_diagonals_of_the_classes_covariances() -> None:
    variances, rows = class_variances(*some_features())
    assert rows.tolist() == [2, 0, 2, 1, 0, 2, 0, 0]
    expected = covariances()
    np.testing.assert_allclose(variances[0].numpy(), np.diag(expected[3]), rtol=1e-12)
    np.testing.assert_allclose(variances[2].numpy(), np.diag(expected[7]), rtol=1e-12)
    assert variances[1].tolist() == [0] * 6, "a single example has no spread"


def test_the_radius_is_the_root_of_the_mean_trace_by_dimensions() -> None:
    variances, _ = class_variances(*some_features())
    traces = [np.trace(covariance) / 6 for covariance in covariances().values()]
    assert feature_radius(variances[[0, 2]]) == pytest.approx(math.sqrt(np.mean(traces)), rel=1e-12)
    assert feature_radius(variances) == pytest.approx(math.sqrt(sum(traces) / 3), rel=1e-12)


def test_noise_is_shaped_by_the_deviation_or_as_released_by_the_squared_variance() -> None:
    variances = torch.tensor([[4.0, 9.0]])
    deviation, limit = noise_shape(variances, "deviation")
    assert (deviation.tolist(), limit.tolist()) == ([[2, 3]], [13])
    deviation, limit = noise_shape(variances, "square")
    assert (deviation.tolist(), limit.tolist()) == ([[16, 81]], [97])


def test_noise_within_its_limit_is_normal_noise_times_the_deviation() -> None:
    deviation = torch.tensor([[1.0, 2.0, 0.0], [0.5, 0.0, 4.0]])
    found = bounded_noise(deviation, torch.full((2,), math.inf), torch.Generator().manual_seed(4))
    assert torch.equal(found, deviation * torch.randn(2, 3, generator=torch.Generator().manual_seed(4)))


def test_noise_that_is_too_long_is_drawn_again() -> None:
    """A normal number that is drawn until it lies in [-1, 1] has the variance 1 - 2 phi(1) / (2 Phi(1) - 1)."""
    found = bounded_noise(torch.ones(40_000, 1), torch.ones(40_000), torch.Generator().manual_seed(1))
    assert found.abs().max() <= 1
    density, inside = math.exp(-0.5) / math.sqrt(2 * math.pi), math.erf(1 / math.sqrt(2))
    assert found.square().mean().item() == pytest.approx(1 - 2 * density / inside, abs=0.01)


def test_noise_that_never_fits_is_shortened_to_its_limit_and_only_there() -> None:
    deviation = torch.ones(3, 500)
    limit = torch.tensor([0.1, 1e6, 0.0])  # the squared length of such noise is about 500
    found = bounded_noise(deviation, limit, torch.Generator().manual_seed(1)).square().sum(1).tolist()
    assert found[0] == pytest.approx(0.1, rel=1e-5)
    assert 300 < found[1] < 700
    assert found[2] == 0


def test_no_spread_means_no_noise() -> None:
    assert torch.equal(bounded_noise(torch.zeros(2, 3), torch.zeros(2), torch.Generator()), torch.zeros(2, 3))
