"""Images that a network takes for its training data: how far their statistics are off, and where a student errs."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fcil.maths.distillation import distillation

Where = Literal["agree", "differ"]


def channel_statistics(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of each channel (the second dimension) over images and positions.

    >>> channel_statistics(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    (tensor([2., 5.]), tensor([1., 0.]))
    """
    others = [dimension for dimension in range(maps.ndim) if dimension != 1]
    variance, mean = torch.var_mean(maps, others, correction=0)
    return mean, variance


def blended(value: Tensor, kept: Tensor, momentum: float) -> Tensor:
    """Return a batch's value mixed with the running value of earlier batches.

    >>> blended(torch.tensor(1.0), torch.tensor(2.0), 0.75).item()
    1.75
    """
    return (1 - momentum) * value + momentum * kept


def statistics_gap(mean: Tensor, variance: Tensor, kept_mean: Tensor, kept_variance: Tensor) -> Tensor:
    """Return one batch norm's share of L_bn: |var_run - v|_2 + |mean_run - m|_2 over its channels.

    >>> zero, one = torch.zeros(2), torch.ones(2)
    >>> statistics_gap(torch.tensor([3.0, 4.0]), one, zero, one).item()
    5.0
    """
    gap: Tensor = torch.linalg.vector_norm(kept_variance - variance) + torch.linalg.vector_norm(kept_mean - mean)
    return gap


def adversarial_loss(student_logits: Tensor, teacher_logits: Tensor, where: Where = "agree") -> Tensor:
    """Return L_adv per example: -KL(p_teacher || p_student) where both name the same class, and zero elsewhere.

    Minimising it pushes images from where the student is right to where it is wrong. The released code has this
    mask; `differ` is the paper's, which pushes on where the student is wrong already.
    """
    same = student_logits.argmax(1) == teacher_logits.argmax(1)
    counted = same if where == "agree" else ~same
    return -distillation(student_logits, teacher_logits, 1.0) * counted
