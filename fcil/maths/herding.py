"""Exemplar choice by herding; the order is a ranking, so a memory shrinks by truncation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def herd(features: Tensor, count: int, *, replacement: bool = False) -> Tensor:
    """Return up to `count` row numbers, best first, whose running mean follows the mean of the normalised features.

    At step k it takes argmin || mu - (f_i + sum of the chosen) / k ||. With `replacement` an item may be chosen
    again, as in the released code; without it at most as many as there are rows are returned.
    """
    unit = F.normalize(features, dim=1)
    mean = class_mean(features)
    steps = count if replacement else min(count, len(unit))
    chosen = torch.empty(steps, dtype=torch.int64)
    total = torch.zeros_like(mean)
    taken = torch.zeros(len(unit), dtype=torch.bool, device=unit.device)
    for step in range(steps):
        distance = (mean - (total + unit) / (step + 1)).norm(dim=1)
        if not replacement:
            distance = distance.masked_fill(taken, float("inf"))
        best = int(distance.argmin())
        chosen[step] = best
        taken[best] = True
        total = total + unit[best]
    return chosen


def class_mean(features: Tensor) -> Tensor:
    """Return the mean of the normalised features (itself not normalised again)."""
    return F.normalize(features, dim=1).mean(0)
