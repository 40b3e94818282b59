"""Losses that know which classes a client holds, and how many samples of each."""

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


def counted_logits(logits: Tensor, counts: Tensor, absent: float = 0.0) -> Tensor:
    """Return z_c + ln n_c, n_c the client's samples of a class; the last dimension is that of the classes.

    A class that the client does not hold counts as `absent` samples; with zero its logit is minus infinity, which
    leaves it out of a softmax.

    >>> counted_logits(torch.zeros(1, 3), torch.tensor([1, 1, 0])).tolist()
    [[0.0, 0.0, -inf]]
    """
    return logits + torch.where(counts > 0, counts.to(logits), absent).log()


def counted_cross_entropy(logits: Tensor, labels: Tensor, counts: Tensor, absent: float = 0.0) -> Tensor:
    """Return the cross-entropy of the counted logits per example.

    Adding ln n_c makes up for a client's shares: the logits that minimise it are those of balanced classes. Classes
    that it does not hold are left out, so that a client pushes no class down of which it knows nothing.

    >>> loss = counted_cross_entropy(torch.zeros(1, 3), torch.tensor([0]), torch.tensor([3, 1, 0]))
    >>> round(loss.item(), 5)  # -ln(3 / 4)
    0.28768
    """
    return F.cross_entropy(counted_logits(logits, counts, absent), labels, reduction="none")


def own_outputs(counts: Tensor, taught: int = 0) -> Tensor:
    """Return the outputs whose terms a client's binary cross-entropy keeps: the first `taught`, and those it holds.

    The targets of the first ones are a teacher's, not labels, so every client knows them.

    >>> own_outputs(torch.tensor([0, 0, 3, 0, 1]), taught=1).tolist()
    [0, 2, 4]
    """
    kept = counts > 0
    kept[:taught] = True
    return kept.nonzero().squeeze(1)
