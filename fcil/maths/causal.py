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


def joint_probabilities(
    logits: Tensor, neighbour_logits: Tensor, own_weight: float = 1.0, neighbour_weight: float = 1.0
) -> Tensor:
    """Return j = (mu1 p + mu2 q) / (mu1 + mu2), p the softmax, q the mean of the neighbours' softmaxes.

    `neighbour_logits` is (examples, neighbours, classes); no gradient flows through it. Without neighbours j is p.
    """
    own = F.softmax(logits, 1)
    if neighbour_logits.shape[1] == 0:
        return own
    neighbours = F.softmax(neighbour_logits.detach(), 2).mean(1)
    return (own_weight * own + neighbour_weight * neighbours) / (own_weight + neighbour_weight)


def joint_nll(
    logits: Tensor,
    neighbour_logits: Tensor,
    labels: Tensor,
    own_weight: float = 1.0,
    neighbour_weight: float = 1.0,
) -> Tensor:
    """Return -log j[y] per example, j as in `joint_probabilities`, summed in the log domain so that it stays finite."""
    own = F.log_softmax(logits, 1).gather(1, labels[:, None]).squeeze(1)
    count = neighbour_logits.shape[1]
    if count == 0:
        return -own
    index = labels[:, None, None].expand(-1, count, 1)
    each = F.log_softmax(neighbour_logits.detach(), 2).gather(2, index).squeeze(2)
    neighbours = torch.logsumexp(each, 1) - math.log(count)
    mixed = torch.logaddexp(own + _log(own_weight, own), neighbours + _log(neighbour_weight, own))
    return math.log(own_weight + neighbour_weight) - mixed


def _log(weight: float, like: Tensor) -> Tensor:
    return like.new_tensor(weight).log()  # a weight of zero is minus infinity, where math.log would raise


def momentum_step(momentum: Tensor, features: Tensor, decay: float = MOMENTUM) -> Tensor:
    """Return h after one batch, h <- 0.9 h + mean f, without gradients; h starts at zero.

    >>> import torch
    >>> momentum_step(torch.tensor([10.0, 0.0]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [11.0, 3.0]
    """
    mean = features.detach().mean(0) if len(features) else torch.zeros_like(momentum)
    return decay * momentum + mean


def remove_effect(logits: Tensor, features: Tensor, weight: Tensor, direction: Tensor, alpha: float = ALPHA) -> Tensor:
    """Return z' = z - alpha W (h h^T f) of a linear head, h the direction of the momentum, of length one."""
    return logits - alpha * torch.outer(features @ direction, weight @ direction)


def without_effect(weight: Tensor, direction: Tensor, alpha: float = ALPHA) -> Tensor:
    """Return the head W (I - alpha h h^T), whose outputs are those of `remove_effect`."""
    return weight - alpha * torch.outer(weight @ direction, direction)
