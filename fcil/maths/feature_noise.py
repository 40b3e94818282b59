"""Features with noise of the spread of their class, on which LGA's proxy scores a model."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

ATTEMPTS = 20  # in many dimensions nearly all draws are within the limit or nearly none, so more would not help


def class_variances(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the variance of each feature within each class, and for every example the row of its class.

    It is the diagonal of the classes' covariances; that of a class with a single example is zero.
    """
    classes, rows, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    sums = features.new_zeros(len(classes), features.shape[1])
    means = sums.index_add(0, rows, features) / counts[:, None]
    squares = sums.index_add(0, rows, (features - means[rows]).square())
    return squares / (counts - 1).clamp(min=1)[:, None], rows


def feature_radius(variances: Tensor) -> float:
    """Return sqrt(mean over the classes of trace(covariance) / D), given the variances of each class's features."""
    return float(variances.mean().sqrt())


def noise_shape(variances: Tensor, kind: Literal["deviation", "square"]) -> tuple[Tensor, Tensor]:
    """Return the noise's standard deviation per feature, before the radius, and the limit of its squared length.

    deviation: the root of the variance, and the sum of the variances. square: as released, the square of the variance
    stands for both.
    """
    if kind == "deviation":
        return variances.sqrt(), variances.sum(1)
    return variances.square(), variances.square().sum(1)


def bounded_noise(deviation: Tensor, limit: Tensor, draw: torch.Generator) -> Tensor:
    """Return normal noise with these deviations, each row of a squared length of at most its limit.

    A row that is too long is drawn again, and if it still is after a number of attempts, shortened to its limit: the
    released code draws for ever where deviations are large.
    """
    noise = deviation * torch.randn(deviation.shape, generator=draw).to(deviation)
    for _ in range(ATTEMPTS - 1):
        long = (noise.square().sum(1) > limit).nonzero().squeeze(1)
        if len(long) == 0:
            break
        noise[long] = deviation[long] * torch.randn(len(long), deviation.shape[1], generator=draw).to(deviation)
    length = noise.square().sum(1)
    shortened = noise * (limit / length).sqrt()[:, None]
    return torch.where((length > limit)[:, None], shortened, noise)
