"""A cross-entropy that knows which classes a client holds, and how many samples of each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def class_counts(labels: Tensor, classes: int) -> Tensor:
    """Return the number of samples of each class.

    >>> class_counts(torch.tensor([0, 2, 2]), 4).tolist()
    [1, 0, 2, 0]
    """
    return torch.bincount(labels, minlength=classes)


def counted_cross_entropy(logits: Tensor, labels: Tensor, counts: Tensor, absent: float = 0.0) -> Tensor:
    """Return the cross-entropy of z_c + ln n_c per example, n_c the client's samples of a class.

    Adding ln n_c makes up for a client's shares: the logits that minimise it are those of balanced classes. A class
    that the client does not hold counts as `absent` samples; with zero it is left out, so that a client pushes no class
    down of which it knows nothing.

    >>> loss = counted_cross_entropy(torch.zeros(1, 3), torch.tensor([0]), torch.tensor([3, 1, 0]))
    >>> round(loss.item(), 5)  # -ln(3 / 4)
    0.28768
    """
    weights = torch.where(counts > 0, counts.to(logits), torch.full_like(logits[0], absent))
    return F.cross_entropy(logits + weights.log(), labels, reduction="none")
