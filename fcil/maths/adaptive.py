"""LGA's gradient-adaptive weights: one mean per group of old classes, and gradients raised to a growing power."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fcil.maths.compensation import relative_measure


def accelerated_measure(measure: Tensor, before: int) -> Tensor:
    """Return |G|^(t / (t + 1)) with t blocks before the newest one; |G| itself while there is none.

    >>> import torch
    >>> accelerated_measure(torch.tensor([0.25]), 1).item()  # the square root in the second block
    0.5
    """
    return measure ** (before / (before + 1)) if before else measure


def adaptive_weights(
    measure: Tensor, block: Tensor, old: Tensor, before: int, grouping: Literal["block", "cumulative"]
) -> Tensor:
    """Return the weight of each example, given its block, whether its class is old, and the number of blocks before.

    A new example is weighed by the mean of the new ones. An old one is weighed by the mean of the old ones of its
    block, or (cumulative, as released) by those of the blocks 0..i for every i from its own block on, all added up.
    """
    nothing = torch.zeros_like(measure)
    weights = torch.where(old, nothing, relative_measure(measure, ~old))
    for last in range(before):
        group = old & (block <= last if grouping == "cumulative" else block == last)
        weights = weights + torch.where(group, relative_measure(measure, group), nothing)
    return weights
