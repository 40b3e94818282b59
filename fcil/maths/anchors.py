"""LANDER: features near fixed anchors of the labels, the two shares of its loss, and a learned normalisation."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

TEXT_LENGTH = 9.67  # mean length of the source's text embeddings of CIFAR-100's labels
SMALLEST_DEVIATION = 0.01


def random_anchors(names: Sequence[str], size: int) -> Tensor:
    """Return a normal vector of a text embedding's length per class id: a function of the id and of nothing else.

    >>> random_anchors(["cat"], 4)[0].norm().item() == random_anchors(["dog", "cat"], 4)[1].norm().item()
    True
    """
    rows = []
    for name in names:
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1
        rows.append(torch.randn(size, generator=torch.Generator().manual_seed(seed)))
    return TEXT_LENGTH * F.normalize(torch.stack(rows)) if rows else torch.empty(0, size)


def anchor_loss(mapped: Tensor, anchors: Tensor, radius: float) -> Tensor:
    """Return max(0, MSE - radius), where the MSE is over the whole batch; zero for an empty one.

    A batch whose mean is inside the radius has no gradient, however far out one of its samples is.
    """
    squares = (mapped - anchors).square()
    return F.relu(squares.sum() / max(1, squares.numel()) - radius)


def shares(old: int, classes: int, current: float, previous: float) -> tuple[float, float]:
    """Return kappa_cur and kappa_pre, the weights of the losses on new classes and on old ones.

    >>> [round(share, 3) for share in shares(10, 20, 0.2, 0.4)]
    [0.365, 0.978]
    """
    alpha, beta = math.log2(classes / 2 + 1), math.sqrt(old / classes)
    return current * (1 + 1 / alpha) / beta, previous * alpha * beta


def renormalised(
    images: Tensor, mean: Tensor, deviation: Tensor, network_mean: Tensor, network_deviation: Tensor
) -> Tensor:
    """Return images that a network, by its own normalisation, sees as (images - mean) / deviation."""
    seen = (images - mean) / deviation.abs().clamp_min(SMALLEST_DEVIATION)
    return seen * network_deviation + network_mean


def balanced_labels(count: int, classes: int, draw: torch.Generator) -> Tensor:
    """Return labels in turn, each as often as all can be, and random ones for the rest.

    >>> balanced_labels(7, 3, torch.Generator())[:6].tolist()
    [0, 1, 2, 0, 1, 2]
    """
    even = count - count % classes
    return torch.cat([torch.arange(even) % classes, torch.randint(classes, (count - even,), generator=draw)])
