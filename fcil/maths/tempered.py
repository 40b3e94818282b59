"""FedCBDR's loss: one softmax with a temperature of its own for old and for new outputs, and a mean for each group."""

from __future__ import annotations

import torch
from torch import Tensor

from fcil.maths.losses import cross_entropy

OLD_TEMPERATURE, NEW_TEMPERATURE = 0.9, 1.1  # tau_o and tau_n that the paper found best
OLD_WEIGHT, NEW_WEIGHT = 1.1, 0.9  # omega_o and omega_n


def tempered_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    old_classes: int,
    old_temperature: float = OLD_TEMPERATURE,
    new_temperature: float = NEW_TEMPERATURE,
) -> Tensor:
    """Return -ln q_y per example, q = softmax(z_old / tau_o, z_new / tau_n); the first `old_classes` are old."""
    old, new = logits[:, :old_classes] / old_temperature, logits[:, old_classes:] / new_temperature
    return cross_entropy(torch.cat([old, new], 1), labels)


def group_weights(old: Tensor, old_weight: float = OLD_WEIGHT, new_weight: float = NEW_WEIGHT) -> Tensor:
    """Return a weight per example by which a sum is omega_o times the mean of the old ones + omega_n times the others'.

    >>> group_weights(torch.tensor([True, False, False]), 1.0, 4.0).tolist()
    [1.0, 2.0, 2.0]
    """
    each_old, each_new = old_weight / old.sum().clamp(min=1), new_weight / (~old).sum().clamp(min=1)
    return torch.where(old, each_old, each_new)
