"""Distillation of a teacher's outputs, softened by a temperature."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

TEMPERATURE = 2.0  # of LwF, BiC, SS-IL and DDE's host alike


def distillation(
    logits: Tensor, teacher_logits: Tensor, temperature: float = TEMPERATURE, *, rescaled: bool = False
) -> Tensor:
    """Return KL(softmax(teacher / T) || softmax(z / T)) over the teacher's outputs, per example; zero without any.

    LwF's paper has no factor T^2, and DDE's host has 0.25 T^2 = 1 at T = 2: both are this default. SS-IL has T^2, which
    is `rescaled`. LwF writes the cross-entropy, which differs by the teacher's entropy and has the same gradient.
    """
    old = logits[:, : teacher_logits.shape[1]]
    target = F.log_softmax(teacher_logits / temperature, 1)
    divergence = F.kl_div(F.log_softmax(old / temperature, 1), target, reduction="none", log_target=True).sum(1)
    return temperature**2 * divergence if rescaled else divergence
