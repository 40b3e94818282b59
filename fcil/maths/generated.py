"""MFCL: what a generator's images should look like to the network, and which features clients keep on them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

BLUR_REACH = 2  # pixels to each side of the middle
SMALLEST = 1e-8  # added to variances


def balance_loss(logits: Tensor) -> Tensor:
    """Return 1 + sum_c p_c ln p_c / ln C, p the batch's mean probabilities: 0 if all classes come alike, 1 if one does.

    >>> balance_loss(torch.zeros(3, 4)).item()
    0.0
    """
    classes = logits.shape[1]
    mean = F.softmax(logits, 1).mean(0)
    return 1 + torch.special.entr(mean).sum() / -math.log(classes) if classes > 1 else 0 * mean.sum()


def gaussian_gap(mean: Tensor, variance: Tensor, kept_mean: Tensor, kept_variance: Tensor) -> Tensor:
    """Return the mean over channels of KL(N(kept) || N(batch)) at one batch norm.

    >>> zero, one = torch.zeros(2), torch.ones(2)
    >>> gaussian_gap(zero, one, zero, one).item(), round(gaussian_gap(one, one, zero, one).item(), 6)
    (0.0, 0.5)
    """
    variance, kept_variance = variance + SMALLEST, kept_variance + SMALLEST
    ratio = (kept_variance + (kept_mean - mean) ** 2) / variance
    return (((variance / kept_variance).log() - 1 + ratio) / 2).mean()


def blurred(images: Tensor) -> Tensor:
    """Return images smoothed over 5 x 5 pixels, mirrored at the edges, with weights exp(-(d / 2)^2) by distance d."""
    reach = torch.arange(-BLUR_REACH, BLUR_REACH + 1, dtype=images.dtype, device=images.device)
    weights = torch.exp(-((reach / 2) ** 2))
    kernel = torch.outer(weights, weights) / weights.sum() ** 2
    channels = images.shape[1]
    padded = F.pad(images, [BLUR_REACH] * 4, mode="reflect")
    return F.conv2d(padded, kernel.expand(channels, 1, -1, -1), groups=channels)


def roughness(images: Tensor) -> Tensor:
    """Return each image's mean squared difference from its blurred self."""
    return (images - blurred(images)).square().mean((1, 2, 3))


def weighted_distance(features: Tensor, teacher_features: Tensor, weight: Tensor) -> Tensor:
    """Return per example the mean squared difference of the outputs that a head's weights give to both features.

    Directions of the features that the old head does not look at are free to change.
    """
    return F.linear(features - teacher_features, weight).square().mean(1)
