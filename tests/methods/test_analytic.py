"""Analytic: the head of a federation is the one of all samples in one place, and reports carry sums alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from support.objectives import Workshop
from support.parties import Losing
from torch import Tensor

from fcil.core.errors import FederationError
from fcil.core.messages import Order, Report, Weighted, encoded_size
from fcil.core.messages.types import ModelParcel
from fcil.data.datasets import DataConfig, load_source
from fcil.data.datasets.dataset import Source
from fcil.federation.aggregation import Mean
from fcil.federation.client import Stamped
from fcil.federation.server import FederationConfig
from fcil.federation.simulation import SimulationState
from fcil.maths.analytic import Sums, chosen_penalty, feature_sums, projected, ridge, triangle
from fcil.methods.analytic import AnalyticConfig, SumsState, solved
from fcil.methods.ledger import Receipts, SampleLedger, withdraw
from fcil.methods.server import ONE
from fcil.methods.sums_client import CLASSES, COUNTS, GRAM
from fcil.testing import Trial, trial

EACH = 12  # images of a class
ONE_PLACE: dict[str, Any] = {
    "tasks": 1,
    "rounds_per_task": 1,
    "initial_clients": 1,
    "joiners": 0,
    "participants": 1,
    "class_fraction": 1.0,
}
SPLIT: dict[str, Any] = {
    "tasks": 5,
    "rounds_per_task": 2,
    "initial_clients": 4,
    "joiners": 1,
    "participants": 9,
    "class_fraction": 0.6,
    "split": "disjoint",
}


@cache
def digits() -> Source:
    return load_source(DataConfig(source="digits", samples_per_class=EACH))


def federation(scenario: dict[str, Any], **parts: Any) -> Trial:
    return trial("analytic", source=digits(), scenario=scenario, width=16, **parts)


def played(made: Trial) -> SimulationState:
    with closing(made.simulation.engine):
        return made.run()[0]


def played_until(round: int, made: Trial) -> SimulationState:
    return next(state for state, _ in made.simulation.rounds(made.simulation.start()) if state.round == round)


def head(state: SimulationState) -> tuple[Tensor, float]:
    """Return the solution in double precision, a row per class by its number, and the penalty."""
    kept, catalogue = state.server.role_state, state.server.catalogue.classes
    assert isinstance(kept, SumsState)
    assert kept.sums is not None
    weight, _ = solved(AnalyticConfig(), kept.sums)
    return weight[[catalogue.index(str(label)) for label in range(len(catalogue))]], chosen_penalty(kept.sums)


@cache
def in_one_place() -> SimulationState:
    return played(federation(ONE_PLACE))


def assert_same_head(found: SimulationState, rtol: float = 1e-8) -> None:
    (weight, penalty), (expected, wanted) = head(found), head(in_one_place())
    assert penalty == pytest.approx(wanted, rel=rtol)
    assert float((weight - expected).norm()) <= rtol * float(expected.norm())


OTHERWISE: dict[str, dict[str, Any]] = {
    "sites with classes of their own": SPLIT,
    "another order of the classes": {**SPLIT, "class_order": tuple(reversed(range(10)))},
    "one class a task": {**SPLIT, "tasks": 10, "rounds_per_task": 1, "class_fraction": 1.0, "joiners": 0},
    "few of many clients each round": {**SPLIT, "initial_clients": 8, "participants": 3, "rounds_per_task": 12},
}


@pytest.mark.parametrize("scenario", OTHERWISE.values(), ids=OTHERWISE.keys())
def test_the_head_of_any_split_is_the_one_of_all_samples_in_one_place(scenario: dict[str, Any]) -> None:
    state = played(federation(scenario))
    kept: Any = state.server.role_state
    assert kept.counts.tolist() == [EACH] * 10
    assert_same_head(state)


def test_worker_processes_and_classes_announced_late_lead_to_the_same_head() -> None:
    late = {"announce": "reply"}
    assert_same_head(played(federation(SPLIT, engine="processes", workers=1, federation=late)))


def test_the_model_that_predicts_has_the_solved_head_on_the_model_that_was_sent() -> None:
    made = federation(SPLIT)
    state = played(made)
    kept: Any = state.server.role_state
    found = made.simulation.server.predictor(state.server)
    weight, bias = solved(AnalyticConfig(), kept.sums)
    assert torch.equal(found["head.weight"], weight.float())
    assert torch.equal(found["head.bias"], bias.float())
    assert all(torch.equal(found[name], value) for name, value in state.model.items() if "head" not in name)
    correct, images = made.simulation.evaluate(state)
    assert sum(correct) > 0.5 * sum(images)


def test_a_client_downloads_the_model_once_and_uploads_each_sums_once() -> None:
    made = federation({**SPLIT, "rounds_per_task": 3, "joiners": 0})
    start = made.simulation.start()
    parcel = encoded_size(ModelParcel("0" * 32, start.model))
    rounds = list(made.simulation.rounds(start))
    assert len({record.model for _, record in rounds}) == 1
    first, *others = [record for _, record in rounds]
    assert first.bytes_down > first.clients * parcel
    assert all(record.bytes_down < parcel for record in others)
    size = 64  # features of the network
    sums = 8 * size * (size + 1) // 2
    with_data = [record for _, record in rounds if record.reports]
    assert all(0 < record.bytes_up - sums * record.reports < sums * record.reports for record in with_data)
    later = [record for number, (_, record) in enumerate(rounds) if number % 3]  # of a task: nothing new, nothing sent
    assert [record.reports for record in later] == [0] * 10


def test_lost_replies_are_sent_again_and_counted_once() -> None:
    made = federation({**SPLIT, "rounds_per_task": 4})
    losses = {(number, client) for client in range(6) for number in (0, 1, 4, 9, 12) if client != number % 5}
    engine = Losing(made.simulation.engine, losses)
    made.simulation = replace(made.simulation, engine=engine)
    state = played(made)
    assert engine.lost > 8
    assert_same_head(state)


def test_clients_go_on_with_a_server_that_was_set_back_one_round() -> None:
    made = federation({**SPLIT, "rounds_per_task": 3})
    states = []
    for state, _ in made.simulation.rounds(made.simulation.start()):
        states.append(state)
        if state.round == 4:
            break
    state, _ = made.run(states[2])  # round 4 once more, by clients that have run it
    assert_same_head(state)


def test_a_client_from_a_backup_stops_and_everybody_else_goes_on() -> None:
    made = federation({**SPLIT, "rounds_per_task": 3})
    state = played_until(4, made)
    made.clients.kept[1] = Stamped(3, SampleLedger())  # it has sent samples, and remembers none
    _, records = made.run(state)
    failures = [failure for record in records for failure in record.failures]
    assert {failure["client"] for failure in failures} == {1}
    assert len(failures) == len(records)
    assert "restore the newest state of this client" in failures[0]["reason"]
    assert sum(record.reports for record in records) > 0


def test_a_client_without_the_pixels_of_a_batch_says_so_instead_of_summing_black_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = federation(ONE_PLACE, federation={"min_participants": 1})
    monkeypatch.setattr(made.local.samples, "has_pixels", lambda _: False)
    with pytest.raises(FederationError, match="this client has deleted their pixels"):
        made.run()


@pytest.mark.parametrize("solver", ["ridge", "gaussian", "nearest-mean"])
def test_every_solver_learns_from_the_same_sums(solver: str) -> None:
    made = federation(SPLIT, fields={"solver": solver})
    state = played(made)
    correct, images = made.simulation.evaluate(state)
    assert sum(correct) > 0.25 * sum(images)  # of ten classes, on random features
    kept: Any = state.server.role_state
    other: Any = in_one_place().server.role_state
    torch.testing.assert_close(kept.gram, other.gram, rtol=1e-10, atol=0)


def test_plain_columns_are_the_ridge_as_it_is() -> None:
    made = federation(ONE_PLACE, fields={"unit_columns": False})
    state = played(made)
    kept: Any = state.server.role_state
    found = made.simulation.server.predictor(state.server)["head.weight"]
    torch.testing.assert_close(found, ridge(kept.gram, kept.class_sums, chosen_penalty(kept.sums)).float())
    assert not torch.allclose(found.norm(dim=1), torch.ones(10))


def test_a_random_projection_is_a_part_of_the_model_and_the_same_for_all() -> None:
    fields = {"projection": 200}
    found, whole = federation(SPLIT, fields=fields), federation(ONE_PLACE, fields=fields)
    state, expected = played(found), played(whole)
    kept, other = (one.server.role_state for one in (state, expected))
    assert isinstance(kept, SumsState)
    assert isinstance(other, SumsState)
    assert kept.gram is not None
    assert kept.gram.shape == (200, 200)
    torch.testing.assert_close(kept.gram, other.gram, rtol=1e-8, atol=1e-12)
    model = found.simulation.server.predictor(state.server)
    assert model["head.projection"].shape == (64, 200)
    assert torch.equal(model["head.projection"], whole.simulation.start().model["head.projection"])
    images = found.local.images(torch.arange(20))
    with torch.inference_mode():
        net = found.local.machine.net(model)
        h = projected(net.extract(images), model["head.projection"])
        torch.testing.assert_close(net(images), h @ model["head.weight"].T + model["head.bias"])
    correct, total = found.simulation.evaluate(state)
    assert sum(correct) > 0.3 * sum(total)  # of ten classes, on random features


# --- forgetting ---------------------------------------------------------------------------------------------------


def test_what_clients_withdraw_is_as_if_it_had_never_been_there() -> None:
    made = federation({**SPLIT, "rounds_per_task": 4})
    labels = made.clients.samples.split.labels
    gone = (labels == 3).nonzero().squeeze(1)
    state = played_until(18, made)
    for client, kept in made.clients.kept.items():
        made.clients.kept[client] = replace(kept, state=withdraw(kept.state, gone))  # type: ignore[arg-type]
    kept = made.run(state)[0].server.role_state
    features = made.local.features(made.local.machine.net(state.model), torch.arange(len(labels)))
    rows = (labels != 3).nonzero().squeeze(1)
    catalogue = state.server.catalogue.classes
    outputs = torch.tensor([catalogue.index(str(label)) for label in range(10)])[labels]
    expected = feature_sums(features[rows], outputs[rows], 10)
    assert isinstance(kept, SumsState)
    assert kept.sums is not None
    assert torch.equal(kept.sums.counts, expected.counts)
    torch.testing.assert_close(kept.sums.gram, expected.gram, rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(kept.sums.classes, expected.classes, rtol=1e-5, atol=1e-9)
    found = made.simulation.server.predictor(replace(state.server, role_state=kept))
    net = made.local.machine.net(found)
    with torch.inference_mode():
        predicted = net(made.local.images(torch.arange(len(labels)))).argmax(1)
    assert catalogue.index("3") not in predicted.tolist()


def test_a_withdrawal_of_what_was_never_there_changes_nothing() -> None:
    shop = Workshop("analytic", 0, 4)
    server, samples = shop.roles.server, shop.of_classes(0, 1)
    state: Any = shop_round(shop, SumsState(classes=4), [sums_report(shop, samples)])
    liar = sums_report(shop, torch.cat([samples, shop.of_classes(2)]), sign=-1.0)
    assert server.refusal(liar, shop.model, shop.context) is None
    after: Any = shop_round(shop, state, [liar])
    assert after is state
    gone: Any = shop_round(shop, state, [sums_report(shop, samples, sign=-1.0)])
    assert not gone.counts.any()
    assert not gone.gram.any()


# --- what the server believes -------------------------------------------------------------------------------------


def sums_of(shop: Workshop, samples: Tensor) -> Sums:
    features = shop.local.features(shop.local.machine.net(shop.model), samples)
    return feature_sums(features, shop.local.samples.outputs(samples, shop.context), shop.context.classes)


def sums_report(shop: Workshop, samples: Tensor, sign: float = 1.0, **changed: Tensor) -> Report:
    sums = sums_of(shop, samples)
    parts = {GRAM: triangle(sums.gram), CLASSES: sums.classes, COUNTS: sums.counts}
    weighted = {name: Weighted(sign * value, ONE) for name, value in {**parts, **changed}.items()}
    return Report({}, len(samples), parts=weighted)


def shop_round(shop: Workshop, state: SumsState, reports: Sequence[Report]) -> SumsState:
    gathering = Mean(FederationConfig()).gather(shop.model, 0, range(len(reports)))
    for client, report in enumerate(reports):
        gathering.add(client, report)
    aggregate = replace(gathering.result(), clients=tuple(range(len(reports))))
    found, model = shop.roles.server.round(state, shop.model, aggregate, shop.context)
    assert model is shop.model
    return found  # type: ignore[no-any-return]


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("gram of another size", {GRAM: torch.ones(3, dtype=torch.float64)}, "its gram has the shape (3,)"),
    ("not finite", {COUNTS: torch.full((4,), torch.nan, dtype=torch.float64)}, "NaN, infinity or values above"),
    ("half a sample", {COUNTS: torch.tensor([19.5, 20.5, 0, 0])}, "not whole numbers"),
    ("other samples", {COUNTS: torch.tensor([20.0, 19.0, 0, 0])}, "add up to its samples"),
    ("below zero", {COUNTS: torch.tensor([41.0, -1.0, 0, 0])}, "not whole numbers"),
    ("of another class", {COUNTS: torch.tensor([0.0, 0, 20, 20])}, "not sums over the same samples"),
    ("without products", {GRAM: torch.zeros(16 * 17 // 2)}, "not sums over the same samples"),
    ("more", {"more": torch.ones(1)}, "sends more unasked"),
]


@pytest.mark.parametrize(("changed", "reason"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_sums_that_cannot_be_are_refused(changed: dict[str, Tensor], reason: str) -> None:
    shop = Workshop("analytic", 0, 4)
    honest = sums_report(shop, shop.of_classes(0, 1))
    assert shop.objection(honest) is None
    double = {name: value.double() for name, value in changed.items()}
    found = shop.objection(sums_report(shop, shop.of_classes(0, 1), **double))
    assert found is not None
    assert reason in found


def test_sums_that_are_missing_or_multiplied_are_refused() -> None:
    shop = Workshop("analytic", 0, 4)
    honest = sums_report(shop, shop.of_classes(0, 1))
    without = replace(honest, parts={GRAM: honest.parts[GRAM]})
    assert shop.objection(without) == "it should send gram, class_sums, counts"
    heavy = {name: replace(part, weight=torch.tensor(0.5, dtype=torch.float64)) for name, part in honest.parts.items()}
    assert shop.objection(replace(honest, parts=heavy)) == "its gram does not count once"


def test_a_model_in_a_report_is_refused() -> None:
    made = federation(ONE_PLACE)
    honest = made.roles.client.round

    def with_model(state: Any, broadcast: Any, order: Order, current: Any, local: Any) -> Any:
        after, reply, measured = honest(state, broadcast, order, current, local)
        return after, replace(reply, report=replace(reply.report, model=current.models[broadcast.model])), measured

    made.roles.client.round = with_model  # type: ignore[method-assign]
    with pytest.raises(FederationError, match="it has other parameters"):
        made.run()


def test_the_receipts_are_a_notice_to_everybody() -> None:
    made = federation(ONE_PLACE)
    state = played(made)
    kept: Any = state.server.role_state
    sent = made.simulation.server.role.extra(kept, state.server.context).message
    assert isinstance(sent, Receipts)
    assert sent.of(0) == (1, 0)
