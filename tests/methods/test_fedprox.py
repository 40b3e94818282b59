"""FedProx: a pull towards the received model."""

from __future__ import annotations

import pytest
import torch
from support.objectives import Workshop

from fcil.core.messages import ModelState
from fcil.maths.losses import labelled_bce


def distance(state: ModelState, model: ModelState) -> float:
    return float(torch.stack([(value - model[name]).square().sum() for name, value in state.items()]).sum())


def test_fedprox_stays_nearer_to_the_received_model() -> None:
    moved = {}
    for mu in (1.0, 0.0):
        shop = Workshop("fedprox", 0, 3, mu=mu)
        fitted = shop.fit(shop.objective(shop.of_classes(0, 1, 2, each=12)))
        parameters = {name: value.detach() for name, value in fitted.problem.net.named_parameters()}
        moved[mu] = distance(parameters, shop.model)
        assert all(torch.equal(value, shop.model[name]) for name, value in fitted.received.items())
    assert moved[1.0] < 0.8 * moved[0.0]


def test_fedprox_pulls_nothing_at_the_received_model() -> None:
    shop = Workshop("fedprox", 0, 3, mu=1.0)
    samples = shop.of_classes(0, 1, each=4)
    objective, images = shop.objective(samples), shop.local.images(samples)
    with torch.no_grad():
        found = objective.loss(images, torch.arange(8))
        expected = labelled_bce(objective.problem.net(images), objective.problem.targets).mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
