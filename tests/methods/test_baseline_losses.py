"""Whole losses of baselines, written out from their papers' terms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.blobs import blobs
from support.lessons import Workshop
from torch import Tensor

from fcil.maths.pooled import nca_loss, pod_flat, pod_spatial
from fcil.methods.lesson import Lesson
from fcil.models import grow, initial_state

SOURCE = blobs(per_class=6)


def lesson_of(method: str, old: int, classes: int, **fields: Any) -> tuple[Lesson[Any], Tensor, Tensor]:
    """Return a lesson whose network differs from its teacher, its images and their targets."""
    shop = Workshop(method, SOURCE, old, classes, **fields)
    samples = shop.of_classes(0, classes - 1, each=4)
    shop.before = grow(initial_state(shop.network, 1, 7), old, 8)
    lesson = shop.lesson(samples)
    return lesson, shop.local.images(samples), lesson.problem.targets


def test_bic_weighs_the_distillation_by_the_share_of_old_classes() -> None:
    lesson, images, labels = lesson_of("bic", 3, 4)
    with torch.no_grad():
        found = lesson.loss(images, torch.arange(8))
        logits, teacher = lesson.problem.net(images), lesson.problem.teacher(images)
    distilled = -(F.softmax(teacher / 2, 1) * F.log_softmax(logits[:, :3] / 2, 1)).sum(1).mean()
    expected = 3 / 4 * distilled + F.cross_entropy(logits, labels) / 4
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_ssil_adds_the_divergences_of_the_old_blocks() -> None:
    lesson, images, labels = lesson_of("ssil", 3, 5)
    with torch.no_grad():
        found = lesson.loss(images, torch.arange(8))
        logits, teacher = lesson.problem.net(images), lesson.problem.teacher(images)
    separated = (F.cross_entropy(logits[:4, :3], labels[:4]) + F.cross_entropy(logits[4:, 3:], labels[4:] - 3)) / 2
    soft, target = F.log_softmax(logits[:, :3] / 2, 1), F.log_softmax(teacher / 2, 1)
    distilled = 4 * (target.exp() * (target - soft)).sum(1).mean()
    assert distilled > 1e-3
    assert found.item() == pytest.approx((separated + distilled).item(), rel=1e-5)


def test_podnet_weighs_maps_and_features_and_both_by_the_number_of_classes() -> None:
    lesson, images, labels = lesson_of("podnet", 3, 4, spatial_weight=3.0, flat_weight=0.5)
    net, teacher = lesson.problem.net, lesson.problem.teacher
    with torch.no_grad():
        found = lesson.loss(images, torch.arange(8))
        maps, old_maps = net.maps(images), teacher.maps(images)
        features, old_features = net.pool(maps), teacher.pool(old_maps)
        scale = net.head.scale.abs()
        classified = nca_loss(net.head.similarities(features), labels, scale, nca="official").mean()
        spatial, flat = pod_spatial(maps, old_maps).mean(), pod_flat(features, old_features).mean()
    assert flat > 1e-4
    assert abs(spatial - flat) > 1e-4
    assert found.item() == pytest.approx((classified + 2 * (3 * spatial + 0.5 * flat)).item(), rel=1e-5)
