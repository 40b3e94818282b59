"""Exemplar choice by herding; the order is a ranking, so a memory shrinks by truncation."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def herd(features: Tensor, count: int, *, replacement: bool = False) -> Tensor:
    """Return up to `count` row numbers, best first, whose running mean follows the mean of the normalised features.

    At step k it takes argmin || mu - (f_i + sum of the chosen) / k ||. With `replacement` an item may be chosen
    again, as in the released code; without it at most as many as there are rows are returned.
    """
    whole = torch.nan_to_num(features.detach().to("cpu", torch.float64))  # one that is not would spoil the mean
    unit = F.normalize(whole, dim=1).numpy()
    mean = unit.sum(0) / max(len(unit), 1)
    steps = count if replacement else min(count, len(unit))
    chosen = np.empty(steps, dtype=np.int64)
    penalty = np.zeros(len(unit))
    missing = mean.copy()  # k mu minus the sum of the chosen: what the next one should be
    for step in range(steps):
        offsets = unit - missing
        distance = np.einsum("ij,ij->i", offsets, offsets) + penalty
        best = int(distance.argmin())
        chosen[step] = best
        if not replacement:
            penalty[best] = np.inf
        missing += mean - unit[best]
    return torch.from_numpy(chosen)
