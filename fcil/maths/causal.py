"""DDE: the colliding effect of a sample's neighbours in training, and the momentum effect removed in prediction."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

NEIGHBOURS = 10
MOMENTUM = 0.9
ALPHA = 0.5  # how much of the momentum's effect is removed
BLOCK = 1024  # rows whose distances are held at once


def new_neighbours(features: Tensor, new: Tensor, count: int = NEIGHBOURS) -> Tensor:
    """Return the rows of each sample's nearest samples of new classes, itself excluded, nearest first.

    Distances are Euclidean between normalised features. Every row has min(count, n_new - 1) neighbours, so that one
    rectangle holds them; with fewer than two new samples there are none.
    """
    unit = F.normalize(features.detach(), dim=1)
    candidates = new.nonzero().squeeze(1)
    count = max(0, min(count, len(candidates) - 1))
    if count == 0:
        return torch.empty(len(unit), 0, dtype=torch.int64, device=unit.device)
    blocks = torch.split(torch.arange(len(unit), device=unit.device), BLOCK)
    return torch.cat([_nearest(unit, rows, candidates, count) for rows in blocks])


def _nearest(unit: Tensor, rows: Tensor, candidates: Tensor, count: int) -> Tensor:
    others = unit[candidates]
    distances = others.square().sum(1) - 2 * unit[rows] @ others.T  # less || f_i ||^2, the same for the whole row
    distances = distances.masked_fill(rows[:, None] == candidates, math.inf)
    return candidates[distances.topk(count, largest=False).indices]


def joint_nll(logits: Tensor, neighbour_logits: Tensor, labels: Tensor) -> Tensor:
    """Return -log j[y] per example, j = (p + q) / 2, p the softmax, q the mean of the neighbours' softmaxes.

    `neighbour_logits` is (examples, neighbours, classes); no gradient flows through it. Without neighbours j is p.
    Summed in the log domain, so that it stays finite where the probabilities underflow.
    """
    own = F.log_softmax(logits, 1).gather(1, labels[:, None]).squeeze(1)
    count = neighbour_logits.shape[1]
    if count == 0:
        return -own
    index = labels[:, None, None].expand(-1, count, 1)
    each = F.log_softmax(neighbour_logits.detach(), 2).gather(2, index).squeeze(2)
    neighbours = torch.logsumexp(each, 1) - math.log(count)
    return math.log(2) - torch.logaddexp(own, neighbours)


def momentum_step(momentum: Tensor, features: Tensor, decay: float = MOMENTUM) -> Tensor:
    """Return h after one batch, h <- 0.9 h + mean f, without gradients; h starts at zero.

    >>> import torch
    >>> momentum_step(torch.tensor([10.0, 0.0]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [11.0, 3.0]
    """
    mean = features.detach().mean(0) if len(features) else torch.zeros_like(momentum)
    return decay * momentum + mean


def without_effect(weight: Tensor, direction: Tensor, alpha: float = ALPHA) -> Tensor:
    """Return the head W (I - alpha h h^T), whose outputs are z - alpha W (h h^T f); h has length one."""
    return weight - alpha * torch.outer(weight @ direction, direction)
