"""GeoDL: iCaRL's loss and the distillation of features along the geodesic."""

from __future__ import annotations

import pytest
import torch
from support.lessons import Workshop

from fcil.maths.geodesic import geodesic_loss, geodesic_weight, pooled_features
from fcil.maths.relation import distilled_bce


def test_geodl_adds_the_geodesic_term_to_icarls_loss() -> None:
    shop = Workshop("geodl", 2, 6)
    samples = shop.of_classes(0, 3, each=4)
    lesson = shop.lesson(samples)
    images, problem = shop.local.images(samples), lesson.problem
    with torch.no_grad():
        found = lesson.loss(images, torch.arange(8))
        host = distilled_bce(problem.net(images), problem.targets, problem.teacher(images)).mean()
        now, then = (pooled_features(net.backbone.last_map(net.maps(images))) for net in (problem.net, problem.teacher))
        term = geodesic_weight(2, 4) * geodesic_loss(now, then).mean()
        few = lesson.loss(images[:3], torch.arange(3))
        few_host = distilled_bce(problem.net(images[:3]), problem.targets[:3], problem.teacher(images[:3])).mean()
    assert found.item() == pytest.approx((host + term).item(), rel=1e-5)
    assert few.item() == pytest.approx(few_host.item(), rel=1e-5)  # three samples span no subspace


def test_geodl_keeps_features_nearer_to_the_teachers_along_the_geodesic() -> None:
    distances = {}
    start = Workshop("geodl", 3, 6).pretrained()
    for weight in (1.0, 0.0):
        shop = Workshop("geodl", 3, 6, geodesic_weight=weight)
        shop.teacher, shop.model = start.teacher, start.model
        lesson = shop.fit(shop.lesson(shop.of_classes(0, 3, 4, 5)), epochs=6, rate=0.02)
        images = shop.local.images(lesson.problem.samples)
        with torch.no_grad():
            nets = lesson.problem.net, lesson.problem.teacher
            now, then = (pooled_features(net.backbone.last_map(net.maps(images))) for net in nets)
            batches = zip(now.split(8), then.split(8), strict=True)  # of the size that the client trains on
            distances[weight] = float(torch.cat([geodesic_loss(a, b) for a, b in batches]).mean())
    assert distances[1.0] < 0.6 * distances[0.0]
