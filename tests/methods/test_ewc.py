"""EWC: what mattered to finished data, summed over clients and blocks, and held."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.objectives import Workshop, catalogue, weighted

from fcil.core.messages import ModelState, Report, RoundContext, Weighted
from fcil.maths.penalties import ewc_penalty, fisher_diagonal
from fcil.methods.ewc import FISHER, ImportanceState, TotalImportance
from fcil.methods.local_objective import News
from fcil.models import grow


def test_ewc_measures_what_mattered_to_finished_data_and_holds_it() -> None:
    shop = Workshop("ewc", 3, 6).pretrained(epochs=1)  # what is certain has no Fisher information
    finished = shop.of_classes(0, 1, each=10)
    objective = shop.objective(shop.of_classes(3, 4), news=News(finished=finished))
    sent = objective.parts()
    teacher = shop.local.machine.net(shop.teacher)
    expected = fisher_diagonal(teacher, shop.local.images(finished), shop.local.samples.labels(finished))
    assert sent.keys() == {f"{FISHER}{name}" for name in expected}
    for name, value in expected.items():
        assert sent[f"{FISHER}{name}"].weight.item() == len(finished)
        torch.testing.assert_close(sent[f"{FISHER}{name}"].value, value)
    moved = {}
    for strength in (1000.0, 0.0):
        held = Workshop("ewc", 3, 6, strength=strength)
        held.teacher, held.model = shop.teacher, shop.model
        fitted = held.fit(held.objective(held.of_classes(3, 4, each=10), news=News(finished=finished)))
        weights = {name: value.detach() for name, value in fitted.problem.net.named_parameters()}
        moved[strength] = float(ewc_penalty(weights, shop.teacher, expected, 1.0))
    assert moved[1000.0] < 0.5 * moved[0.0]


def test_ewc_measures_only_what_its_teacher_knows() -> None:
    shop = Workshop("ewc", 2, 4)
    finished = shop.of_classes(1, 3, each=3)
    parts = shop.objective(shop.of_classes(2), news=News(finished=finished)).parts()
    assert {part.weight.item() for part in parts.values()} == {3.0}
    assert shop.objective(shop.of_classes(2), news=News(finished=shop.of_classes(3, each=3))).parts() == {}
    assert shop.objective(shop.of_classes(2)).parts() == {}


def test_ewc_caps_what_would_overshoot_the_old_weights() -> None:
    shop = Workshop("ewc", 2, 4, strength=1000.0)
    net = shop.local.machine.net(shop.teacher)
    fisher = {name: torch.full_like(value, 5.0) for name, value in net.named_parameters()}
    objective = shop.objective(shop.of_classes(2, 3, each=8), TotalImportance(fisher))
    assert all(value.max().item() == pytest.approx(1 / (1000 * 0.05)) for value in objective.fisher.values())
    shop.fit(objective)
    assert all(bool(torch.isfinite(value).all()) for value in objective.problem.net.state_dict().values())


def fishers(model: ModelState, value: float, samples: float) -> dict[str, Weighted]:
    """Return the parts of a client for which everything in a model mattered alike."""
    names = [name for name in model if not name.endswith(("running_mean", "running_var", "num_batches_tracked"))]
    return {f"{FISHER}{name}": weighted(torch.full_like(model[name], value), samples) for name in names}


def test_ewc_averages_by_samples_within_a_block_and_adds_up_the_blocks() -> None:
    shop = Workshop("ewc", 2, 4)
    server = shop.roles.server
    state, _ = server.grow(ImportanceState(), shop.teacher, 4, True, 1)
    ones, threes = (Report(shop.model, 1, parts=fishers(shop.teacher, value, value)) for value in (1.0, 3.0))
    state, _ = shop.round(state, [ones, threes, shop.report()])
    assert state.total["head.bias"].tolist() == [2.5, 2.5]
    state, _ = shop.round(
        state, [Report(shop.model, 1, parts=fishers(shop.teacher, 6.5, 4))]
    )  # late, in the same block
    assert state.total["head.bias"].tolist() == [4.5, 4.5]
    assert state.samples == 8
    merged, _ = server.grow(state, shop.model, 5, False, 1)
    assert merged == state  # a growth that joins the block ends nothing
    state, grown = server.grow(state, shop.model, 6, True, 1)
    later = Workshop("ewc", 4, 6)
    later.model, later.context = grown, RoundContext(9, catalogue(6), (2, 4, 6), 0)
    state, _ = later.round(state, [Report(grown, 1, parts=fishers(shop.model, 1.0, 5))])
    sent = server.extra(state, later.context).message
    assert isinstance(sent, TotalImportance)
    assert sent.fisher["head.bias"].tolist() == [5.5, 5.5, 1.0, 1.0]


def test_ewc_sends_nothing_before_something_mattered() -> None:
    shop = Workshop("ewc", 2, 4)
    assert shop.roles.server.extra(ImportanceState(), shop.context).message is None


BAD_FISHERS: list[tuple[Any, Any, str]] = [
    (torch.ones(4), 1.0, "its fisher.head.bias has the shape (4,)"),  # the old model has two outputs
    (torch.ones(2), [1.0, 1.0], "with weights (2,)"),
    (torch.full((2,), math.nan), 1.0, "contains NaN, infinity or values above "),
    (torch.full((2,), 1e20), 1.0, "contains NaN, infinity or values above "),
    (torch.full((2,), -1.0), 1.0, "negative somewhere"),
    (torch.ones(2, dtype=torch.bool), 1.0, "should be floats"),
    (torch.ones(2), -1.0, "weights that are not believed"),
    (torch.ones(2), 0.0, "weights that are not believed"),  # a mean over no samples would be no number
    (torch.ones(2), math.inf, "weights that are not believed"),
]


@pytest.mark.parametrize(("value", "weight", "reason"), BAD_FISHERS)
def test_ewc_refuses_diagonals_that_cannot_be(value: Any, weight: Any, reason: str) -> None:
    shop = Workshop("ewc", 2, 4)
    parts = {**fishers(shop.teacher, 1.0, 1), f"{FISHER}head.bias": weighted(value, weight)}
    found = shop.objection(Report(shop.model, 1, parts=parts))
    assert found is not None
    assert reason in found


def test_ewc_refuses_what_it_did_not_ask_for() -> None:
    shop = Workshop("ewc", 2, 4)
    good = Report(shop.model, 1, parts=fishers(shop.teacher, 1.0, 1))
    assert shop.objection(good) is None
    more = replace(good, parts={**good.parts, "more": weighted([1.0])})
    assert shop.objection(more) == "it sends other parts: more"
    fewer = replace(good, parts={key: part for key, part in good.parts.items() if key != f"{FISHER}head.bias"})
    assert shop.objection(fewer) == "it sends other parts: fisher.head.bias"
    assert shop.objection(replace(good, rows={"head.weight": torch.ones(4)})) == "it sends other parts: rows"
    assert shop.objection(shop.report(more=weighted([1.0]))) is not None
    assert shop.objection(shop.report(rows={"head.weight": torch.ones(4)})) == "it sends head.weight unasked"


def test_ewc_covers_every_parameter_of_the_network() -> None:
    shop = Workshop("ewc", 2, 4)
    names = dict(shop.local.machine.net(shop.teacher).named_parameters()).keys()
    assert fishers(grow(shop.teacher, 2, 1), 1.0, 1).keys() == {f"{FISHER}{name}" for name in names}


def test_ewc_refuses_importance_before_there_is_a_teacher() -> None:
    shop = Workshop("ewc", 0, 3)
    hostile = fishers({**shop.model, **{name: shop.model[name][:0] for name in ("head.weight", "head.bias")}}, 1.0, 5.0)
    found = shop.objection(Report(shop.model, 1, parts=hostile))
    assert found is not None
    assert found.endswith("unasked")
