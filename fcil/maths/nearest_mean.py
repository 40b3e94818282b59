"""iCaRL's nearest-mean-of-exemplars rule, with class means that merge over clients."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def class_means(features: Tensor, labels: Tensor, classes: int, flipped: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return each class's mean of normalised features and its number of samples; a class without samples has zeros.

    With the features of the mirrored images it is (mean f + mean f_flipped) / 2. The mean is not normalised again:
    only so do means of clients merge to the mean of their samples.
    """
    unit = F.normalize(features, dim=1)
    if flipped is not None:
        unit = (unit + F.normalize(flipped, dim=1)) / 2
    counts = torch.bincount(labels, minlength=classes)
    totals = unit.new_zeros(classes, unit.shape[1]).index_add(0, labels, unit)
    return totals / counts.clamp(min=1)[:, None], counts


def nearest_mean_head(means: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a linear head whose highest output is the class with the nearest mean.

    With means of length one, -|| f - m ||^2 = 2 f.m - 2 for normalised features, so the nearest mean is the one with
    the largest f.m, which normalising f does not change. A class without samples gets a bias below all others.
    """
    bias = torch.zeros(len(means)).masked_fill(counts == 0, torch.finfo(torch.float32).min)
    return F.normalize(means, dim=1), bias
