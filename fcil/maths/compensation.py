"""Class-aware gradient compensation: the weights of L_GC."""

from __future__ import annotations

import torch
from torch import Tensor

from fcil.maths.losses import at_least_single


def gradient_measure(logits: Tensor, labels: Tensor) -> Tensor:
    """Return |G_i| = |p_i[y_i] - 1| per example, p the sigmoid: the gradient at the neuron of the true class."""
    return 1 - torch.sigmoid(at_least_single(logits.detach())).gather(1, labels[:, None]).squeeze(1)


def relative_measure(measure: Tensor, group: Tensor) -> Tensor:
    """Return |G_i| / mean |G| over the examples of a group, for each example; one if the group's gradients vanish."""
    mean = (measure * group).sum() / group.sum().clamp(min=1)
    safe = torch.where(mean > 0, mean, torch.ones_like(mean))
    return torch.where(mean > 0, measure / safe, torch.ones_like(measure))


def compensation_weights(measure: Tensor, old: Tensor) -> Tensor:
    """Return |G_i| / mean |G| over the examples of the same kind, old or new classes.

    A client without new data (S_o) has only old examples and one without a history (S_n) only new ones, so the two
    special cases of the paper need no rule of their own. A group whose gradients all vanish gets weight one.
    """
    return torch.where(old, relative_measure(measure, old), relative_measure(measure, ~old))
