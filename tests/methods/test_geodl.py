"""GeoDL: iCaRL's loss and the distillation of features along the geodesic."""

from __future__ import annotations

import pytest
import torch
from support.objectives import Workshop, state_of

from fcil.maths.geodesic import geodesic_loss, geodesic_weight, pooled_features
from fcil.maths.relation import distilled_bce


def test_geodl_adds_the_geodesic_term_to_icarls_loss() -> None:
    shop = Workshop("geodl", 2, 6)
    samples = shop.of_classes(0, 3, each=4)
    objective = shop.objective(samples)
    images, problem = shop.local.images(samples), objective.problem
    with torch.no_grad():
        found = objective.loss(images, torch.arange(8))
        host = distilled_bce(problem.net(images), problem.targets, problem.teacher(images)).mean()
        now, then = (pooled_features(net.backbone.last_map(net.maps(images))) for net in (problem.net, problem.teacher))
        term = geodesic_weight(2, 4) * geodesic_loss(now, then).mean()
        few = objective.loss(images[:3], torch.arange(3))
        few_host = distilled_bce(problem.net(images[:3]), problem.targets[:3], problem.teacher(images[:3])).mean()
    assert found.item() == pytest.approx((host + term).item(), rel=1e-5)
    assert few.item() == pytest.approx(few_host.item(), rel=1e-5)  # three samples span no subspace


def test_geodl_pulls_features_towards_the_teachers_along_the_geodesic() -> None:
    shop, pulling = Workshop("geodl", 3, 6, geodesic_weight=0.0).pretrained(epochs=2), Workshop("geodl", 3, 6)
    drifted = state_of(shop.fit(shop.objective(shop.of_classes(3, 4, 5)), epochs=1))
    samples = shop.of_classes(0, 3, 4, 5, each=2)
    images, rows, objectives = shop.local.images(samples), torch.arange(8), []
    for place in (shop, pulling):
        place.teacher, place.model = shop.teacher, drifted
        objectives.append(place.objective(samples))
        objectives[-1].loss(images, rows).backward()
    plain, pulled = (objective.problem for objective in objectives)

    def distance() -> float:
        with torch.no_grad():
            nets = pulled.net, pulled.teacher
            now, then = (pooled_features(net.backbone.last_map(net.maps(images))) for net in nets)
            return float(geodesic_loss(now, then).mean())

    pairs = zip(pulled.net.parameters(), plain.net.parameters(), strict=True)
    pulls = [(own, own.grad - other.grad) for own, other in pairs]  # the term's part of the gradient
    steepness = float(sum(pull.square().sum() for _, pull in pulls)) / geodesic_weight(3, 3)
    before = distance()
    with torch.no_grad():
        for parameter, pull in pulls:
            parameter.sub_(0.01 * before / steepness * pull)  # one hundredth less, were the distance linear
    assert distance() < 0.995 * before
