"""iCaRL: soft targets for the old outputs, and the nearest mean of what clients sent."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.objectives import IMAGES, Workshop, state_of, weighted

from fcil.core.messages import Report, Weighted
from fcil.maths.nearest_mean import class_means
from fcil.maths.relation import distilled_bce
from fcil.methods.icarl import MEANS, MeansState


def test_icarl_replaces_the_old_entries_of_the_label_by_the_teachers_sigmoids() -> None:
    shop = Workshop("icarl", 2, 4)
    samples = shop.of_classes(0, 3, each=4)
    objective = shop.objective(samples)
    images, rows = shop.local.images(samples), torch.arange(8)
    with torch.no_grad():
        logits, teacher = objective.problem.net(images), objective.problem.teacher(images)
        found = objective.loss(images, rows)
    target = torch.zeros(8, 4)
    target[torch.arange(8), objective.problem.targets] = 1
    target[:, :2] = torch.sigmoid(teacher)
    by_hand = F.binary_cross_entropy_with_logits(logits, target)
    assert found.item() == pytest.approx(by_hand.item(), rel=1e-6)
    for output, matters in ((1, False), (2, True)):  # an exemplar's own label plays no part, a new sample's does
        row = 0 if output == 1 else 7
        labels = objective.problem.targets.clone()
        labels[row] = output
        changed = distilled_bce(logits, labels, teacher).mean().item()
        assert (changed != pytest.approx(found.item(), rel=1e-6)) == matters


def test_icarl_predicts_by_the_nearest_mean_of_what_clients_sent() -> None:
    shop = Workshop("icarl", 0, 4, predict="nme")
    objective = shop.fit(shop.objective(shop.of_classes(0, 1, 2)))
    sent = objective.parts()[MEANS]
    assert sent.weight.tolist() == [20.0, 20.0, 20.0, 0.0]
    state, averaged = shop.round(MeansState(), [Report(state_of(objective), 60, parts={MEANS: sent})])
    predictor = shop.roles.server.predictor(state, averaged)
    net, samples = shop.local.machine.net(averaged), shop.of_classes(0, 1, 2)
    with torch.no_grad():
        features = F.normalize(net.extract(IMAGES), dim=1)
        images = shop.local.images(samples)
        own, mirrored = net.extract(images), net.extract(images.flip(3))
    centres, _ = class_means(own, shop.local.samples.labels(samples), 3, mirrored)
    nearest = torch.cdist(features, F.normalize(centres, dim=1)).argmin(1)
    assert torch.equal(shop.logits(predictor).argmax(1), nearest)  # and never 3, whose mean nobody has sent


def means(shop: Workshop, output: int, value: float, count: int) -> Weighted:
    """Return a part with one class mean and nothing of the others."""
    value_of = torch.zeros(shop.context.classes, shop.model["head.weight"].shape[1])
    counts = torch.zeros(shop.context.classes, dtype=torch.float64)
    value_of[output], counts[output] = value, count
    return Weighted(value_of, counts)


def test_icarl_averages_means_by_count_and_keeps_the_last_of_an_absent_class() -> None:
    shop = Workshop("icarl", 0, 3, predict="nme")
    first = [shop.report(means=means(shop, 0, 1 / 16, 1)), shop.report(means=means(shop, 0, 4 / 16, 3)), shop.report()]
    state, _ = shop.round(MeansState(), first)
    state, _ = shop.round(state, [shop.report(means=means(shop, 1, 2 / 16, 5))])
    assert (16 * state.means[:, 0]).tolist() == [3.25, 2.0, 0.0]
    assert state.counts.tolist() == [4, 5, 0]
    same, _ = shop.round(state, [shop.report()])
    assert same is state


def test_icarl_keeps_stale_means_when_the_head_has_grown() -> None:
    narrow, wide = Workshop("icarl", 0, 2, predict="nme"), Workshop("icarl", 2, 4, predict="nme")
    state, _ = narrow.round(MeansState(), [narrow.report(means=means(narrow, 1, 1 / 16, 2))])
    state, _ = wide.round(state, [wide.report(means=means(wide, 3, 2 / 16, 5))])
    assert (16 * state.means[:, 0]).tolist() == [0.0, 1.0, 0.0, 2.0]
    assert state.counts.tolist() == [0, 2, 0, 5]


BAD_MEANS: list[tuple[Any, Any, str]] = [
    (torch.zeros(2, 16), [1.0, 1.0], "has the shape (2, 16) with weights (2,)"),
    (torch.zeros(3, 16), 1.0, "with weights ()"),
    (torch.full((3, 16), math.nan), [1.0] * 3, "contains NaN, infinity or values above "),
    (torch.full((3, 16), 99.0), [1.0] * 3, "contains NaN, infinity or values above "),
    (torch.full((3, 16), 0.5), [1.0] * 3, "longer than one"),
    (torch.zeros(3, 16, dtype=torch.bool), [1.0] * 3, "should be floats"),
    (torch.zeros(3, 16), [1.0, -1.0, 1.0], "weights that are not believed"),
    (torch.zeros(3, 16), [1.0, 1.0, 2.0**30], "weights that are not believed"),  # more than the report's samples
    (torch.zeros(3, 16), [1.0, 1.0, math.nan], "weights that are not believed"),
]


@pytest.mark.parametrize(("value", "weight", "reason"), BAD_MEANS)
def test_icarl_refuses_means_that_cannot_be(value: Any, weight: Any, reason: str) -> None:
    shop = Workshop("icarl", 0, 3, predict="nme")
    found = shop.objection(shop.report(means=weighted(value, weight)))
    assert found is not None
    assert reason in found


def test_icarl_refuses_what_it_did_not_ask_for() -> None:
    shop = Workshop("icarl", 0, 3)
    assert shop.objection(shop.report(means=means(shop, 0, 0.1, 1))) == "it sends means unasked"
    asking = Workshop("icarl", 0, 3, predict="nme")
    both = asking.report(means=means(asking, 0, 0.1, 1), bias=weighted([1.0]))
    assert asking.objection(both) == "it sends bias unasked"


def test_icarl_sends_nothing_more_unless_asked_for_means() -> None:
    shop = Workshop("icarl", 2, 4)
    assert shop.objective(shop.of_classes(0, 3, each=4)).parts() == {}
    assert shop.roles.server.needs == frozenset()
