"""A whole simulated run: what its records tell, what evaluation counts, and what decides it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.parties import BRIEF_GLFC, changed, federation, run_rounds, timeless

from fcil.core.errors import stage
from fcil.core.messages import Diagnostics, Message, ModelState, Reply, decode, encode, model_digest
from fcil.federation.class_catalogue import Catalogue
from fcil.federation.simulation import SimulationState
from fcil.federation.traffic import RoundTraffic
from fcil.methods.bic import Bias, BiasState
from fcil.models import grow
from fcil.testing import Trial
from fcil.testing.recorded import Snapshot, intercept, snapshot

ALL = ("0", "1", "2", "3")


@pytest.mark.numeric
def test_a_run_learns_separable_patterns() -> None:
    made = federation(
        scenario={"tasks": 1, "rounds_per_task": 16, "class_fraction": 1.0, "initial_clients": 1, "participants": 1},
        width=16,
    )
    states, _ = run_rounds(made)
    (correct,), (total,) = made.simulation.evaluate(states[-1])
    assert total == 20
    assert correct >= 18


def test_evaluation_counts_right_predictions_by_task() -> None:
    made = federation(scenario={"class_order": (2, 0, 3, 1)})
    states, _ = run_rounds(made)
    test = made.simulation.test
    for state, tasks in ((states[1], 1), (states[3], 2)):
        net = made.local.machine.net(state.model)
        with torch.no_grad():
            outputs = net(test.images.float() / 255).argmax(1).tolist()
        predicted = [int(state.server.catalogue.classes[output]) for output in outputs]
        expected = [
            sum(guess == label for guess, label in zip(predicted, test.labels.tolist(), strict=True) if label in task)
            for task in ((2, 0), (3, 1))[:tasks]
        ]
        assert made.simulation.evaluate(state) == (expected, [10] * tasks)
        assert made.simulation.evaluate(state, batch=3) == (expected, [10] * tasks)


def at(
    made: Trial, round: int, model: ModelState, catalogue: Catalogue, kept: Message | None = None
) -> SimulationState:
    """Return a state with this model, as it could be after some rounds."""
    start = made.simulation.start()
    server = replace(start.server, round=round, model=model, catalogue=catalogue)
    return replace(start, server=replace(server, role_state=kept) if kept else server)


def always(model: ModelState, classes: int, output: int) -> ModelState:
    """Return the model with a head that always answers with one output."""
    grown = grow(model, classes, 0)
    bias = torch.where(torch.arange(classes) == output, 50.0, -50.0)
    return {**grown, "head.weight": torch.zeros_like(grown["head.weight"]), "head.bias": bias}


def test_a_class_without_output_is_never_right() -> None:
    made = federation()
    model = always(made.simulation.start().model, 1, 0)
    state = at(made, 1, model, Catalogue(("1",), (1,), 0))
    assert made.simulation.evaluate(state) == ([5], [10])  # the images of class 1; class 0 has no output yet


def test_images_are_evaluated_as_they_are() -> None:
    made = federation()
    model, test = made.simulation.start().model, made.simulation.test
    images, net = test.images.float() / 255, made.local.machine.net(model)
    with torch.no_grad():
        means = torch.stack([net.extract(images[test.labels == label]).mean(0) for label in range(4)])
    nearest = {**model, "head.weight": means, "head.bias": -means.square().sum(1) / 2}
    state = at(made, 3, nearest, Catalogue(ALL, (2, 4), 2))
    assert made.simulation.evaluate(state) == ([10, 10], [10, 10])  # mirrored, the nearest mean is always another one


def test_the_predictor_is_what_is_evaluated() -> None:
    made = federation("bic")
    model, catalogue = always(made.simulation.start().model, 4, 1), Catalogue(ALL, (2, 4), 2)
    assert made.simulation.evaluate(at(made, 3, model, catalogue)) == ([5, 0], [10, 10])
    corrected = at(made, 3, model, catalogue, BiasState(begins=2, bias=Bias(1.0, 200.0)))
    assert made.simulation.evaluate(corrected) == ([0, 5], [10, 10])


def test_records_tell_the_scenarios_truth() -> None:
    made = federation(scenario={"both_share": 0.5})
    states, records = run_rounds(made)
    plan = made.simulation.scenario
    assert [record.round for record in records] == [1, 2, 3, 4]
    assert [record.task for record in records] == [0, 0, 1, 1]
    assert [record.ends_task for record in records] == [False, True, False, True]
    assert [record.classes for record in records] == [2, 2, 4, 4]
    assert [record.clients for record in records] == [4, 4, 5, 5]
    assert [record.groups for record in records] == [{"S_o": 0, "S_b": 0, "S_n": 4}] * 2 + [
        {"S_o": 2, "S_b": 2, "S_n": 1}
    ] * 2
    for number, record in enumerate(records):
        assert record.participants == plan.participants(number)
        holding = [client for client in record.participants if len(plan.holding(number, client))]
        assert record.reports == len(holding), "who holds nothing has nothing to report"
        assert record.arrivals == [client for client in plan.clients(number) if plan.new_classes(number, client)]
        assert record.alarms == record.arrivals, "the label detector neither misses nor errs"
        assert record.failures == []
        assert record.bytes_down > record.bytes_up > 0
        assert [sum(way) for way in zip(*record.traffic.values(), strict=True)] == [record.bytes_up, record.bytes_down]
        assert len(states[number].model["head.bias"]) == record.classes


def test_what_is_measured_at_sites_is_in_the_record_and_not_in_what_they_send() -> None:
    sent: list[bytes] = []

    def watch(traffic: RoundTraffic, reply: Reply) -> Reply:
        sent.append(encode(reply))
        return reply

    made = federation(wrap=changed(watch), scenario={"tasks": 1, "rounds_per_task": 1})
    _, (record,) = run_rounds(made)
    measured = made.clients.diagnostics
    assert sorted(measured) == [0, 1, 2, 3]
    assert record.alarms == [client for client, found in measured.items() if found.alarm]
    losses = [found.loss for found in measured.values() if found.loss is not None]
    assert record.loss == pytest.approx(sum(losses) / len(losses))
    assert len(losses) == 3
    assert sent
    assert not any(b"Diagnostics" in reply for reply in sent)


def test_a_measure_that_is_not_finite_stays_out_of_the_record() -> None:
    made = federation(scenario={"tasks": 1, "rounds_per_task": 1})
    honest = made.roles.client.round

    def diverging(*arguments: object) -> tuple[object, Reply, Diagnostics]:
        state, reply, found = honest(*arguments)  # type: ignore[arg-type]
        return state, reply, replace(found, entropy=float("nan"), loss=float("inf") if reply.report else None)

    made.roles.client.round = diverging  # type: ignore[method-assign, assignment]
    _, (record,) = run_rounds(made)
    assert (record.entropy, record.loss, record.diverged) == (None, None, record.participants)


def test_a_client_that_fails_is_in_the_record_with_its_stage() -> None:
    made = federation(scenario={"tasks": 1})
    victim = made.simulation.scenario.participants(0)[0]

    def fail(round: int, client: int) -> None:
        if (round, client) == (0, victim):
            with stage("memory"):
                raise MemoryError("no room")

    _, records = run_rounds(intercept(made, fail))
    assert records[0].failures == [{"client": victim, "round": 1, "stage": "memory", "reason": "MemoryError: no room"}]
    assert [record.reports for record in records] == [2, 3]


def test_the_seed_alone_decides_a_run() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (
        run_rounds(federation("icarl", seed=seed, scenario={"rounds_per_task": 1})) for seed in (3, 3, 4)
    )
    assert model_digest(first[0][-1].model) == model_digest(again[0][-1].model)
    assert timeless(first[1]) == timeless(again[1])
    assert model_digest(first[0][-1].model) != model_digest(other[0][-1].model)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_state_that_was_stored_and_read_goes_on_alike() -> None:
    made, other = federation("icarl"), federation("icarl")
    state, _ = next(made.simulation.rounds(made.simulation.start()))
    read = decode(snapshot(made, state), Snapshot)
    other.clients.restore({int(client): kept for client, kept in read.clients.items()}, read.table)
    following, record = next(made.simulation.rounds(state))
    again, record_again = next(other.simulation.rounds(read.state))
    assert snapshot(made, following) == snapshot(other, again)
    assert timeless([record]) == timeless([record_again])


def test_a_late_class_grows_the_head_in_its_round_and_is_tested_from_then_on() -> None:
    late = {"round": 2, "classes": [0], "clients": [2]}
    scenario = {"tasks": (2, 1), "rounds_per_task": (3, 2), "arrivals": [late], "participants": 6}
    made = federation("glfc", scenario=scenario, hyper=BRIEF_GLFC)
    states, records = run_rounds(made)
    assert [state.server.catalogue.classes for state in states[:2]] == [("1", "2"), ("1", "2", "0")]
    assert states[-1].server.catalogue.blocks == (2, 3, 4)
    assert [record.task for record in records] == [0, 0, 0, 1, 1]
    assert [record.ends_task for record in records] == [False, False, True, False, True]
    assert (records[1].arrivals, records[1].alarms) == ([2], [2])
    assert not any(record.failures for record in records)
    assert [made.simulation.evaluate(state)[1] for state in states] == [[10], [15], [15], [15, 5], [15, 5]]
