"""SS-IL: a softmax of its own for old and for new classes, and distillation task by task."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from fcil.maths.distillation import TEMPERATURE, distillation
from fcil.maths.losses import cross_entropy


def separated_cross_entropy(logits: Tensor, labels: Tensor, old_classes: int) -> Tensor:
    """Return per example the softmax cross-entropy among the old outputs (y < C_o) or among the new ones (y >= C_o).

    A sample has no gradient at all in the other part. Without old classes it is the ordinary cross-entropy.
    """
    old = labels < old_classes
    parts = [
        cross_entropy(logits[old, :old_classes], labels[old]),
        cross_entropy(logits[~old, old_classes:], labels[~old] - old_classes),
    ]
    places = torch.cat([old.nonzero(), (~old).nonzero()]).squeeze(1)  # where the parts' examples stand in the batch
    return torch.cat(parts)[places.argsort()]


def taskwise_distillation(
    logits: Tensor, teacher_logits: Tensor, blocks: Sequence[int], temperature: float = TEMPERATURE
) -> Tensor:
    """Return sum_j T^2 KL(softmax(teacher_j / T) || softmax(z_j / T)) per example, j the blocks that the teacher knows.

    `blocks` are the head's widths after each growth; outputs that the teacher does not have are left out.
    """
    losses = [logits.new_zeros(len(logits))]
    for first, last in pairwise([0, *blocks]):
        block, teacher_block = logits[:, first:last], teacher_logits[:, first:last]
        losses.append(distillation(block, teacher_block, temperature, rescaled=True))
    return torch.stack(losses).sum(0)
