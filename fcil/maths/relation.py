"""Class-semantic relation distillation: the target of L_RD and the two divergences from it."""

from __future__ import annotations

import torch
from torch import Tensor

from fcil.maths.losses import at_least_single, binary_cross_entropy, labelled_bce, one_hot

PROBABILITY_FLOOR = 1e-4  # keeps KL(P || Y) finite where the target is exactly 0 or 1


def relation_target(labels: Tensor, teacher_logits: Tensor, classes: int) -> Tensor:
    """Return the one-hot labels with their first C_old entries replaced by the teacher's sigmoids."""
    target = one_hot(labels, classes, teacher_logits)
    target[:, : teacher_logits.shape[1]] = torch.sigmoid(teacher_logits)
    return target


def distilled_bce(
    logits: Tensor, labels: Tensor, teacher_logits: Tensor | None, outputs: Tensor | None = None
) -> Tensor:
    """Return iCaRL's loss per example: the relation target, or the labels alone while there is no teacher."""
    if teacher_logits is None:
        return labelled_bce(logits, labels, outputs)
    return binary_cross_entropy(logits, relation_target(labels, teacher_logits, logits.shape[1]), outputs)


def relation_bce(logits: Tensor, target: Tensor, outputs: Tensor | None = None) -> Tensor:
    """Return L_RD as the released code has it: binary cross-entropy with a soft target, mean over the classes."""
    return binary_cross_entropy(logits, target, outputs)


def relation_kl(logits: Tensor, target: Tensor, outputs: Tensor | None = None) -> Tensor:
    """Return L_RD as the text has it, KL(P || Y): a sum over classes, or these outputs, of Bernoulli divergences."""
    logits, target = at_least_single(logits), at_least_single(target)  # in half precision the floor would be none
    target = target.clamp(PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR)
    present, absent = torch.sigmoid(logits), torch.sigmoid(-logits)
    log_present, log_absent = torch.nn.functional.logsigmoid(logits), torch.nn.functional.logsigmoid(-logits)
    divergence = present * (log_present - target.log()) + absent * (log_absent - (1 - target).log())
    return (divergence if outputs is None else divergence[:, outputs]).sum(1)


def old_outputs_distillation(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Return iCaRL's distillation alone: binary cross-entropy over the first C_old outputs (ablation w/o CRD)."""
    return binary_cross_entropy(logits[:, : teacher_logits.shape[1]], torch.sigmoid(teacher_logits))
