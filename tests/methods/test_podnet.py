"""PODNet: proxies that rest, are imprinted and belong to owners, and the distillation of pooled maps."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.objectives import IMAGES, Workshop, gathered, weighted
from torch import Tensor

from fcil.core.messages import Report
from fcil.maths.pooled import nca_loss, pod_flat, pod_spatial, pooled_map
from fcil.methods.podnet import PROXY, TaughtOutputs


def test_podnet_weighs_maps_and_features_and_both_by_the_number_of_classes() -> None:
    shop = Workshop("podnet", 3, 4, spatial_weight=3.0, flat_weight=0.5)
    samples = shop.of_classes(0, 3, each=4)
    objective, images = shop.objective(samples), shop.local.images(samples)
    net, teacher, labels = objective.problem.net, objective.problem.teacher, objective.problem.targets
    with torch.no_grad():
        found = objective.loss(images, torch.arange(8))
        maps, old_maps = net.maps(images), teacher.maps(images)
        features, old_features = net.pool(maps), teacher.pool(old_maps)
        scale = net.head.scale.abs()
        classified = nca_loss(net.head.similarities(features), labels, scale, nca="official").mean()
        spatial, flat = pod_spatial(maps, old_maps).mean(), pod_flat(features, old_features).mean()
    assert flat > 1e-4
    assert abs(spatial - flat) > 1e-4
    assert found.item() == pytest.approx((classified + 2 * (3 * spatial + 0.5 * flat)).item(), rel=1e-5)


def test_podnet_keeps_pooled_maps_nearer_to_the_teachers_than_training_without_it() -> None:
    distances = {}
    start = Workshop("podnet", 3, 6).pretrained()
    for weight in (1.0, 0.0):
        shop = Workshop(
            "podnet", 3, 6, spatial_weight=9 * weight, flat_weight=3 * weight
        )  # strong, as the rate is small
        shop.teacher, shop.model = start.teacher, start.model
        objective = shop.fit(shop.objective(shop.of_classes(3, 4, 5)), epochs=4, rate=0.005)
        images = shop.local.images(objective.problem.samples)
        with torch.no_grad():
            pairs = zip(objective.problem.net.maps(images), objective.problem.teacher.maps(images), strict=True)
            distances[weight] = sum(float((pooled_map(a) - pooled_map(b)).norm(dim=1).mean()) for a, b in pairs)
    assert distances[1.0] < 0.8 * distances[0.0]


def test_podnet_rests_the_old_proxies_until_the_fine_tune() -> None:
    shop = Workshop("podnet", 3, 6)
    objective = shop.objective(shop.of_classes(0, 3, 4))
    optimiser, samples = shop.local.machine.train.optimiser(), objective.problem.samples
    shop.local.machine.fit(
        objective.problem.net, shop.local.samples, samples, objective.loss, [0.1, 0.1], 1, optimiser, objective.epoch
    )
    head = objective.problem.net.head.weight.detach()
    turned = F.cosine_similarity(head[:3], shop.model[PROXY][:3], dim=2)
    torch.testing.assert_close(turned, torch.ones(3, 10))  # weight decay may shorten them
    assert not torch.equal(head[3], shop.model[PROXY][3])
    before = head.clone()
    objective.finish()
    tuned = objective.problem.net.head.weight.detach()[:3]
    assert not torch.equal(tuned, before[:3])
    moved = F.cosine_similarity(tuned, shop.model[PROXY][:3], dim=2)
    assert float(moved.min()) < 1 - 1e-6  # the fine-tune turns them; putting them back alone would not


def test_podnet_imprints_the_new_classes_that_nobody_has_trained() -> None:
    shop = Workshop("podnet", 3, 6)
    objective = shop.objective(shop.of_classes(0, 3, 4), TaughtOutputs((0, 1, 2, 4)))
    changed = (objective.problem.net.head.weight.detach() != shop.model[PROXY]).flatten(1).any(1)
    assert changed.nonzero().squeeze(1).tolist() == [3]
    with torch.no_grad():
        own = shop.local.machine.net(shop.model).extract(shop.local.images(shop.of_classes(3)))
    unit = F.normalize(own, dim=1)
    proxies = F.normalize(objective.problem.net.head.weight.detach()[3], dim=1)
    random = F.normalize(shop.model[PROXY][3], dim=1)
    assert (unit @ proxies.T).max(1).values.mean() > (unit @ random.T).max(1).values.mean()


def rows(*owned: float) -> dict[str, Tensor]:
    return {PROXY: torch.tensor(owned, dtype=torch.float64)}


def test_podnet_has_a_say_in_the_proxies_of_its_own_classes_alone() -> None:
    shop = Workshop("podnet", 2, 4)
    assert shop.objective(shop.of_classes(0, 3)).row_weights()[PROXY].tolist() == [1.0, 0.0, 0.0, 1.0]


def test_podnet_averages_a_classs_proxies_over_its_owners_and_leaves_the_others() -> None:
    shop = Workshop("podnet", 0, 3)
    ones, threes = ({**shop.model, PROXY: torch.full_like(shop.model[PROXY], value)} for value in (1.0, 3.0))
    state, model = shop.round(TaughtOutputs(), [Report(ones, 1, rows(1, 1, 0)), Report(threes, 1, rows(0, 1, 0))])
    assert [float(model[PROXY][label].mean()) for label in (0, 1)] == [1.0, 2.0]
    assert torch.equal(model[PROXY][2], shop.model[PROXY][2])
    assert state.outputs == (0, 1)
    state, _ = shop.round(state, [Report(ones, 1, rows(0, 0, 1))])
    assert state.outputs == (0, 1, 2)


def test_podnets_owners_count_by_their_samples_where_the_models_do() -> None:
    shop = Workshop("podnet", 0, 3)
    ones, threes = ({**shop.model, PROXY: torch.full_like(shop.model[PROXY], value)} for value in (1.0, 3.0))
    reports = [Report(ones, 1, rows(1, 1, 0)), Report(threes, 3, rows(0, 1, 0))]
    model = gathered(shop.model, reports, "samples").model
    assert [float(model[PROXY][label].mean()) for label in (0, 1)] == [1.0, 2.5]


def test_podnet_tells_what_is_taught_from_the_second_block_on() -> None:
    server, state = Workshop("podnet", 0, 3).roles.server, TaughtOutputs((0,))
    assert server.extra(state, Workshop("podnet", 0, 3).context).message is None
    assert server.extra(state, Workshop("podnet", 2, 3).context).message == state


@pytest.mark.parametrize(
    "sent", [{}, rows(1, 1), rows(1, 1, 7), rows(1, -1, 0), rows(1, math.nan, 0), {**rows(1, 1, 1), "x": torch.ones(3)}]
)
def test_podnet_refuses_rows_that_are_not_owned_or_not(sent: dict[str, Any]) -> None:
    shop = Workshop("podnet", 0, 3)
    found = shop.objection(shop.report(rows=sent))
    assert found is not None
    assert "head.weight" in found


def test_podnet_refuses_what_it_did_not_ask_for() -> None:
    shop = Workshop("podnet", 0, 3)
    good = shop.report(rows=rows(1, 0, 1))
    assert shop.objection(good) is None
    assert shop.objection(replace(good, parts={"bias": weighted([1.0])})) is not None


def test_podnet_takes_a_head_of_proxies_and_no_last_activation() -> None:
    shop = Workshop("podnet", 0, 3)
    assert (shop.network.head, shop.network.last_relu) == ("proxies", False)
    assert shop.model[PROXY].shape == (3, 10, 16)
    with torch.no_grad():
        net = shop.local.machine.net(shop.model)
        maps = net.maps(IMAGES)
        torch.testing.assert_close(net.pool(maps), net.extract(IMAGES))
    assert (maps[-1] < 0).any()
