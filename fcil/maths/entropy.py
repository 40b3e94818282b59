"""Task transition detection: entropies of predictions and the rules that raise an alarm on them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

OFFICIAL_EPSILON = 1e-5  # the released code adds it inside the logarithm


def softmax_entropy(logits: Tensor) -> Tensor:
    """Return H = -sum p ln p of the softmax, per example, in nats.

    >>> import torch
    >>> round(softmax_entropy(torch.zeros(1, 10)).item(), 6)  # ln 10
    2.302585
    """
    log_p = F.log_softmax(logits, 1)
    return -(log_p.exp() * log_p).sum(1)


def official_entropy(logits: Tensor) -> Tensor:
    """Return H as the released code computes it: -sum p ln(p + 1e-5), per example."""
    p = F.softmax(logits, 1)
    return -(p * torch.log(p + OFFICIAL_EPSILON)).sum(1)


def rises(entropy: float, previous: float, threshold: float, *, strict: bool = False) -> bool:
    """Say whether the entropy rose by at least the threshold (the text), or by more than it (the released code)."""
    rise = entropy - previous
    return rise > threshold if strict else rise >= threshold


def relative_threshold(fraction: float, outputs: int) -> float:
    """Return the threshold as a fraction of the largest entropy that `outputs` outputs can have, ln(outputs)."""
    return fraction * math.log(max(outputs, 2))
