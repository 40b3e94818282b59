"""DDE: neighbours in a label's likelihood, and the momentum's effect out of the head."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.objectives import IMAGES, Workshop, weighted

from fcil.core.messages import Report, Weighted
from fcil.maths.causal import new_neighbours
from fcil.maths.distillation import distillation
from fcil.maths.losses import cross_entropy
from fcil.methods import dde
from fcil.methods.dde import MOMENTUM, EffectState
from fcil.methods.server import ONE
from fcil.models.trainer import CHUNK


@pytest.mark.parametrize("piece", [CHUNK, 4], ids=["at once", "in pieces, the last one smaller"])
def test_dde_adds_neighbours_of_new_classes_to_a_labels_likelihood(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dde, "CHUNK", piece)  # six distinct neighbours
    shop = Workshop("dde", 2, 4)
    samples = shop.of_classes(0, 3, each=6)
    objective = shop.objective(samples)
    images, rows = shop.local.images(samples), torch.arange(12)
    net, labels = objective.problem.net, objective.problem.targets
    with torch.no_grad():
        found = objective.loss(images, rows)
        logits, teacher = net(images), objective.problem.teacher(images)
        near = new_neighbours(objective.problem.teacher.extract(images), labels >= 2, 10)
    assert near.shape == (12, 5)  # six new samples, one of which may be the sample itself
    p = logits.softmax(1)
    joint = (p + p[near].mean(1)) / 2
    distilled = distillation(logits, teacher).mean()
    assert distilled > 1e-4
    assert found.item() == pytest.approx((-joint[rows, labels].log().mean() + distilled).item(), rel=1e-5)


def test_dde_without_new_samples_or_teacher_is_plain_cross_entropy() -> None:
    for old in (0, 2):
        shop = Workshop("dde", old, 4)
        samples = shop.of_classes(0, 1, each=4)
        objective, images = shop.objective(samples), shop.local.images(samples)
        with torch.no_grad():
            found = objective.loss(images, torch.arange(8))
            logits = objective.problem.net(images)
            host = cross_entropy(logits, objective.problem.targets).mean()
            if old:
                host = host + distillation(logits, objective.problem.teacher(images)).mean()
        assert found.item() == pytest.approx(host.item(), rel=1e-6)


def test_dde_removes_the_effect_of_the_averaged_momentum() -> None:
    shop = Workshop("dde", 2, 4)
    groups = ((0, 2), (1, 3))
    sent = [shop.fit(shop.objective(shop.of_classes(*group, each=8)), epochs=1).parts() for group in groups]
    state, model = shop.round(EffectState(), [Report(shop.model, 16, parts=parts) for parts in [*sent, {}]])
    mean = (sent[0][MOMENTUM].value + sent[1][MOMENTUM].value) / 2
    torch.testing.assert_close(state.direction, mean / mean.norm())
    with torch.no_grad():
        features = shop.local.machine.net(model).extract(IMAGES)
    along = torch.outer(features @ state.direction, model["head.weight"] @ state.direction)
    found = shop.logits(shop.roles.server.predictor(state, model))
    torch.testing.assert_close(found, shop.logits(model) - 0.5 * along, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, shop.logits(model))


def test_dde_keeps_its_direction_while_no_momentum_comes() -> None:
    shop = Workshop("dde", 2, 4)
    state, _ = shop.round(EffectState(torch.ones(16)), [shop.report()])
    assert state.direction is not None
    opposed = [shop.report(momentum=Weighted(sign * torch.ones(16), ONE)) for sign in (1, -1)]
    state, model = shop.round(state, opposed)
    assert not state.direction.any()  # a mean of zero points nowhere
    assert torch.equal(shop.roles.server.predictor(state, model)["head.weight"], model["head.weight"])


def test_dde_sends_no_momentum_before_there_is_an_old_model() -> None:
    shop = Workshop("dde", 0, 4)
    assert shop.objective(shop.of_classes(0, each=4)).parts() == {}


BAD_MOMENTA: list[tuple[Any, Any, str]] = [
    (torch.ones(3), 1.0, "has the shape (3,)"),
    (torch.ones(16), [1.0] * 16, "with weights (16,)"),
    (torch.full((16,), math.nan), 1.0, "contains NaN, infinity or values above "),
    (torch.full((16,), 1e9), 1.0, "contains NaN, infinity or values above "),
    (torch.ones(16, dtype=torch.int64), 1.0, "should be floats"),
    (torch.ones(16), -1.0, "weights that are not believed"),
    (torch.ones(16), 1000.0, "weights that are not believed"),
]


@pytest.mark.parametrize(("value", "weight", "reason"), BAD_MOMENTA)
def test_dde_refuses_momenta_that_cannot_be(value: Any, weight: Any, reason: str) -> None:
    shop = Workshop("dde", 2, 4)
    found = shop.objection(shop.report(momentum=weighted(value, weight)))
    assert found is not None
    assert reason in found


def test_dde_refuses_what_it_did_not_ask_for() -> None:
    shop, good = Workshop("dde", 2, 4), weighted(torch.ones(16))
    assert shop.objection(shop.report(momentum=good, more=good)) == "it sends more unasked"
    assert shop.objection(shop.report(rows={"head.weight": torch.ones(4)})) == "it sends head.weight unasked"
