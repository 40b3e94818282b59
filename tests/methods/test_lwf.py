"""LwF: cross-entropy and the divergence from the teacher."""

from __future__ import annotations

import pytest
import torch
from support.objectives import Workshop

from fcil.maths.distillation import distillation
from fcil.maths.losses import cross_entropy


def test_lwf_is_cross_entropy_and_the_divergence_from_the_teacher() -> None:
    shop = Workshop("lwf", 2, 4, distillation_weight=0.7)
    samples = shop.of_classes(2, 3, each=4)
    objective, images = shop.objective(samples), shop.local.images(samples)
    with torch.no_grad():
        found = objective.loss(images, torch.arange(8))
        logits, teacher = objective.problem.net(images), objective.problem.teacher(images)
    distilled = distillation(logits, teacher).mean()
    assert distilled > 1e-4
    expected = cross_entropy(logits, objective.problem.targets).mean() + 0.7 * distilled
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
