"""Warm start: new rows point where ridge regression on the participants' sums does, and nothing else changes."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from support.objectives import Workshop
from torch import Tensor

from fcil.core.messages import Report, Weighted
from fcil.maths.analytic import chosen_penalty, feature_sums, ridge, triangle
from fcil.methods import get_method
from fcil.methods.server import ONE
from fcil.methods.warm_start import CLASSES, COUNTS, GRAM, NAMES, WarmServer, turned, warmed
from fcil.testing import trial

WEIGHT = "head.weight"
SMALL: dict[str, Any] = {"tasks": 2, "rounds_per_task": 2, "initial_clients": 3, "joiners": 0, "participants": 3}


def shop_of(method: str = "finetune", old: int = 2) -> Workshop:
    shop = Workshop(method, old, 4, warm_start=True)
    shop.roles = warmed(shop.roles, shop.config)
    return shop


def sums_of(shop: Workshop, samples: Tensor) -> Any:
    features = shop.local.features(shop.local.machine.net(shop.model), samples)
    return feature_sums(features, shop.local.samples.outputs(samples, shop.context), shop.context.classes)


def report_of(shop: Workshop, samples: Tensor, **changed: Tensor) -> Report:
    sums = sums_of(shop, samples)
    parts = {GRAM: triangle(sums.gram), CLASSES: sums.classes, COUNTS: sums.counts, **changed}
    return Report(shop.model, len(samples), parts={name: Weighted(value, ONE) for name, value in parts.items()})


def test_rows_of_new_classes_with_samples_turn_and_keep_their_length() -> None:
    shop = shop_of()
    sums = sums_of(shop, shop.of_classes(0, 1, 2))  # of the two new classes, 2 and 3, one has samples
    found = turned(shop.model, sums, 2)
    before, after = shop.model[WEIGHT], found[WEIGHT]
    assert torch.equal(before[[0, 1, 3]], after[[0, 1, 3]])
    solution = ridge(sums.gram, sums.classes, chosen_penalty(sums))
    torch.testing.assert_close(F.normalize(after[2], dim=0).double(), F.normalize(solution[2], dim=0))
    torch.testing.assert_close(after[2].norm(), before[2].norm())
    assert all(found[name] is value for name, value in shop.model.items() if name != WEIGHT)
    assert turned(shop.model, sums_of(shop, shop.of_classes(0)), 2) is shop.model


@pytest.mark.parametrize("method", ["finetune", "mosaic", "glfc", "icarl", "ewc"])
def test_sums_come_in_the_first_round_of_a_block_alone_and_the_rounds_go_on(method: str) -> None:
    made = trial(method, scenario=SMALL, fields={"warm_start": True})
    assert isinstance(made.simulation.server.role, WarmServer)
    inner = made.simulation.engine.run
    sent: list[bool] = []

    def run(traffic: Any, orders: Any) -> Any:
        for answer in inner(traffic, orders):
            if answer.report is None:
                yield answer
                continue
            sent.append(answer.report.parts.keys() >= NAMES)
            assert answer.report.parts.keys() & NAMES in (set(), NAMES)
            yield answer

    made.simulation.engine.run = run  # type: ignore[method-assign]
    with closing(made.simulation.engine):
        _, records = made.run()
    assert sent == [number in (0, 2) for number, record in enumerate(records) for _ in range(record.reports)]
    assert not any(record.failures for record in records)


def test_a_warm_start_changes_the_model_and_needs_no_other_setting() -> None:
    models = []
    for warm in (False, True):
        made = trial("mosaic", scenario=SMALL, fields={"warm_start": warm})
        with closing(made.simulation.engine):
            models.append(made.run()[0].model[WEIGHT])
    assert not torch.equal(*models)


def test_sums_that_are_missing_or_cannot_be_are_refused() -> None:
    shop = shop_of()
    server, samples = shop.roles.server, shop.of_classes(2, 3)
    assert server.refusal(report_of(shop, samples), shop.model, shop.context) is None
    bad = report_of(shop, samples)
    for parts, said in (
        ({}, "in the first round of a block"),
        ({**bad.parts, GRAM: Weighted(torch.ones(3).double(), ONE)}, "has the shape"),
        ({**bad.parts, COUNTS: Weighted(bad.parts[COUNTS].value, ONE * 2)}, "not believed"),
        ({**bad.parts, COUNTS: Weighted(bad.parts[COUNTS].value, ONE / 2)}, "does not count once"),
        ({**bad.parts, GRAM: Weighted(-bad.parts[GRAM].value, ONE)}, "not sums over the same samples"),
        ({**bad.parts, "more": Weighted(torch.ones(1), ONE)}, "sends more unasked"),
    ):
        assert said in str(server.refusal(replace(bad, parts=parts), shop.model, shop.context))
    later = replace(shop.context, rounds_since_growth=1)
    assert "unasked" in str(server.refusal(bad, shop.model, later))


def test_podnet_has_no_warm_start() -> None:
    with pytest.raises(ValidationError, match="several rows"):
        get_method("podnet").config(warm_start=True)
