"""The server's half of a round: whose answers count, and for how much."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import torch
from support.parties import BRIEF_GLFC, Constant, Repeating, Shuffling, changed, federation, run_rounds, timeless
from support.rounds import aggregated
from torch import Tensor

from fcil.core.errors import FederationError
from fcil.core.messages import Failure, ModelParcel, Reply, Report, Weighted, model_digest
from fcil.federation.simulation import SimulationState
from fcil.federation.traffic import RoundTraffic
from fcil.testing import Trial
from fcil.testing.recorded import snapshot


@pytest.mark.parametrize(("method", "hyper"), [("icarl", {}), ("glfc", BRIEF_GLFC)])
def test_the_order_of_answers_does_not_matter(method: str, hyper: dict[str, Any]) -> None:
    options: dict[str, Any] = {"hyper": hyper, "scenario": {"rounds_per_task": 1}}
    straight, shuffled = federation(method, **options), federation(method, wrap=Shuffling, **options)
    states, records = run_rounds(straight)
    others, other_records = run_rounds(shuffled)
    assert timeless(other_records) == timeless(records)
    assert snapshot(shuffled, others[-1]) == snapshot(straight, states[-1])


def test_not_a_bit_of_the_sum_depends_on_who_was_faster_even_if_one_client_never_answers() -> None:
    """In double precision 1e8 + 1e-9 - 1e8 is nothing, and 1e8 - 1e8 + 1e-9 is not."""
    server = federation().simulation.server
    opened = server.open(server.grow(server.start(), ["0", "1"]), None)
    values = {1: 1e8, 2: -1e8, 3: 1e-9}
    filled = {
        client: Report({**opened.state.model, "head.bias": torch.full_like(opened.state.model["head.bias"], value)}, 1)
        for client, value in values.items()
    }
    orders = server.orders(range(4), range(4))
    found = set()
    for order in permutations(values):
        answers = [Reply(client, filled[client]) for client in order]
        found.add(float(aggregated(server, opened, orders, answers).state.model["head.bias"][0]))
    assert [*found] == [pytest.approx(1e-9 / 3)]


def changed_parameter(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Report], Report]:
    return lambda report: replace(report, model={**report.model, name: change(report.model[name])})


def poisoned(value: float) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        broken = tensor.clone()
        broken.view(-1)[-1] = value
        return broken

    return change


def without_bias(report: Report) -> Report:
    return replace(report, model={name: value for name, value in report.model.items() if name != "head.bias"})


def with_rows(name: str, weights: Tensor) -> Callable[[Report], Report]:
    return lambda report: replace(report, rows={name: weights})


ONE = torch.ones((), dtype=torch.float64)
UNSOUND: dict[str, tuple[Callable[[Report], Report], str]] = {
    "not a number": (changed_parameter("head.bias", poisoned(float("nan"))), "head.bias"),
    "infinite": (changed_parameter("backbone.layers.0.weight", poisoned(float("-inf"))), "backbone.layers.0.weight"),
    "infinite statistics": (
        changed_parameter("backbone.layers.1.running_var", poisoned(float("inf"))),
        "backbone.layers.1.running_var",
    ),
    "wrong shape": (changed_parameter("head.weight", lambda tensor: tensor[:-1]), "head.weight"),
    "flattened": (changed_parameter("head.weight", torch.flatten), "head.weight"),
    "wrong type": (changed_parameter("head.weight", Tensor.double), "float64"),
    "missing parameter": (without_bias, "head.bias"),
    "unknown parameter": (
        lambda report: replace(report, model={**report.model, "extra": torch.zeros(1)}),
        "extra",
    ),
    "no sample": (lambda report: replace(report, samples=0), "0 samples"),
    "more samples than there can be": (lambda report: replace(report, samples=10**400), "samples"),
    "fewer than no sample": (lambda report: replace(report, samples=-5), "-5 samples"),
    "rows of no tensor": (with_rows("tail", torch.ones(4, dtype=torch.float64)), "rows of tail"),
    "rows without end": (with_rows("head.bias", torch.full((4,), float("nan"), dtype=torch.float64)), "rows of head"),
    "rows nobody asked for": (with_rows("head.bias", torch.ones(4, dtype=torch.float64)), "head.bias unasked"),
    "a part nobody asked for": (
        lambda report: replace(report, parts={"secret": Weighted(torch.ones(3), ONE)}),
        "secret unasked",
    ),
}


def mean_of_constants(clients: Sequence[int], averaging: str) -> float:
    weights = [client + 1 if averaging == "samples" else 1 for client in clients]
    return sum(client * weight for client, weight in zip(clients, weights, strict=True)) / sum(weights)


def values_of(state: SimulationState) -> list[float]:
    """Return the distinct values of the model's floats."""
    floats = [tensor.flatten() for tensor in state.model.values() if tensor.is_floating_point()]
    distinct: list[float] = torch.cat(floats).unique().tolist()
    return distinct


@pytest.mark.parametrize("averaging", ["uniform", "samples"])
def test_the_next_model_is_the_mean_of_the_participants(averaging: str) -> None:
    states, records = run_rounds(federation(wrap=Constant, averaging=averaging))
    for state, record in zip(states, records, strict=True):
        assert values_of(state) == pytest.approx([mean_of_constants(record.participants, averaging)])


@pytest.mark.parametrize(("spoil", "named"), UNSOUND.values(), ids=UNSOUND.keys())
def test_an_unsound_update_is_refused_and_the_run_goes_on(spoil: Callable[[Report], Report], named: str) -> None:
    def spoil_one(traffic: RoundTraffic, reply: Reply) -> Reply:
        if reply.report and reply.client == victim and traffic.broadcast.context.round == 1:
            return replace(reply, report=spoil(reply.report))
        return reply

    made = federation(
        wrap=changed(spoil_one, Constant),
        averaging="samples",
        scenario={"tasks": 1, "rounds_per_task": 3},
    )
    world = made.simulation.scenario
    victim = world.participants(1)[1]
    states, records = run_rounds(made)
    (failure,) = records[1].failures
    assert (failure["client"], failure["round"], failure["stage"]) == (victim, 2, "update")
    assert f"client {victim} " in failure["reason"]
    assert named in failure["reason"]
    assert [record.failures for record in (records[0], records[2])] == [[], []]
    assert [record.reports for record in records] == [3, 2, 3]
    for number, state in enumerate(states):
        sound = [client for client in world.participants(number) if (number, client) != (1, victim)]
        assert values_of(state) == pytest.approx([mean_of_constants(sound, "samples")])


def test_a_refused_update_keeps_its_class_ids_and_the_alarm_it_came_with() -> None:
    def spoil(traffic: RoundTraffic, reply: Reply) -> Reply:
        if reply.client == first and traffic.broadcast.context.round == 1 and reply.report:
            return replace(reply, report=replace(reply.report, samples=0), announced=("77",))
        return reply

    honest = federation()
    first = min(honest.simulation.scenario.participants(1))
    states, records = run_rounds(federation(wrap=changed(spoil), scenario={"rounds_per_task": 1}))
    assert [failure["client"] for failure in records[1].failures] == [first]
    assert states[1].server.waiting == ("77",)
    _, true_records = run_rounds(federation(scenario={"rounds_per_task": 1}))
    assert (records[1].alarms, records[1].bytes_up) == (true_records[1].alarms, true_records[1].bytes_up)


def test_too_few_answers_stop_the_run_and_say_who_failed() -> None:
    def lose_participants(traffic: RoundTraffic, reply: Reply) -> Reply | Failure:
        if traffic.broadcast.context.round == 1 and reply.client in lost:
            return Failure(reply.client, 1, "fit", "power cut")
        return reply

    def with_least(least: int) -> Trial:
        return federation(wrap=changed(lose_participants, Constant), min_participants=least)

    lost = federation().simulation.scenario.participants(1)[:2]
    assert len(run_rounds(with_least(1))[1]) == 4
    with pytest.raises(FederationError) as caught:
        run_rounds(with_least(2))
    message = str(caught.value)
    assert "round 2: 1 participants answered" in message
    assert "federation.min_participants" in message
    for client in lost:
        assert f"client {client} failed in round 2 at stage fit: power cut" in message


def test_bystanders_do_not_count_as_participants() -> None:
    def lose(traffic: RoundTraffic, reply: Reply) -> Reply | Failure:
        return Failure(reply.client, 0, "fit", "power cut") if reply.report else reply

    with pytest.raises(FederationError, match="0 participants answered"):
        run_rounds(federation(wrap=changed(lose, Constant)))


def test_a_federation_with_too_few_clients_says_so() -> None:
    made = federation(wrap=Constant, scenario={"leaves": ({"round": 2, "clients": 3},)}, min_participants=2)
    with pytest.raises(FederationError, match=r"round 2: 1 participants answered.*1 were asked"):
        run_rounds(made)


def test_a_client_that_answers_twice_counts_once() -> None:
    once, _ = run_rounds(federation(wrap=Constant))
    twice, records = run_rounds(federation(wrap=lambda engine: Repeating(Constant(engine))))
    assert model_digest(twice[-1].model) == model_digest(once[-1].model)
    assert {failure["reason"] for record in records for failure in record.failures} == {
        f"client {client} answered twice" for client in range(5)
    }


def test_a_report_from_a_client_that_was_not_asked_is_refused() -> None:
    def volunteer(traffic: RoundTraffic, reply: Reply) -> Reply:
        return replace(reply, report=reply.report or Report(traffic.models[traffic.broadcast.model], 5))

    honest, true_records = run_rounds(federation(wrap=Constant))
    states, records = run_rounds(federation(wrap=changed(volunteer, Constant)))
    assert model_digest(states[-1].model) == model_digest(honest[-1].model)
    bystanders = [record.clients - len(record.participants) for record in true_records]
    assert [len(record.failures) for record in records] == bystanders
    assert all("was not asked to train" in failure["reason"] for failure in records[0].failures)


def test_an_answer_of_a_client_that_is_not_there_is_refused() -> None:
    def pretend(traffic: RoundTraffic, reply: Reply) -> Reply:
        return replace(reply, client=2**62) if reply.client == 0 else reply

    _, records = run_rounds(federation(wrap=changed(pretend, Constant)))
    assert [failure["reason"] for failure in records[0].failures] == [f"client {2**62} was not asked"]


def test_uploads_are_refused_from_bystanders_and_beyond_one_per_class_with_or_without_a_report() -> None:
    made = federation("glfc", hyper=BRIEF_GLFC)
    server = made.simulation.server
    opened = server.open(server.grow(server.start(), ["0", "1"]), None)
    upload = ModelParcel("", {})
    orders = server.orders([1, 2, 3, 4], [1, 2, 3])
    report = Report(opened.state.model, 3)
    answers = [
        Reply(1, report, (upload,) * 2),
        Reply(2, None, (upload,) * 3),
        Reply(3, report, (upload,) * 3),
        Reply(4, None, (upload,)),
    ]
    closed = aggregated(server, opened, orders, answers)
    assert len(closed.uploads) == 2
    assert [failure.reason for failure in closed.failures] == [
        "client 2 sent 3 uploads, more than there are classes",
        "client 3 sent 3 uploads, more than there are classes",
        "client 4 was not asked to train",
    ]


@pytest.mark.parametrize(("late", "most"), [(None, 3), (0, 100)], ids=["in turn", "the first is late"])
def test_reports_are_held_only_until_their_turn(late: int | None, most: int) -> None:
    """In turn, a hundred models never lie in memory together; behind a slow first client all others wait for it."""
    server = federation().simulation.server
    opened = server.open(server.grow(server.start(), ["0", "1"]), None)
    clients = list(range(100))
    alive: weakref.WeakSet[Report] = weakref.WeakSet()
    counts: list[int] = []

    class Watched(Report):
        __hash__ = object.__hash__  # a report is not hashable, its place in memory is

    def answers() -> Iterator[Reply]:
        for client in sorted(clients, key=lambda client: client == late):
            report = Watched(dict(opened.state.model), client + 1)
            alive.add(report)
            answer = Reply(client, report)
            del report
            counts.append(len(alive))
            yield answer

    closed = aggregated(server, opened, server.orders(clients, clients), answers())
    assert closed.reports == 100
    assert max(counts) == most if late is not None else max(counts) <= most
    assert model_digest(closed.state.model) == model_digest(opened.state.model)


def test_nobody_waits_for_a_bystander() -> None:
    server = federation().simulation.server
    opened = server.open(server.grow(server.start(), ["0", "1"]), None)
    added: list[int] = []

    def answers() -> Iterator[Reply]:
        yield Reply(3, Report(opened.state.model, 1))
        added.append(gathered[0].models.count)  # the bystanders before it have not answered yet
        yield from (Reply(0), Reply(1), Reply(2))

    gathered: list[Any] = []
    honest = server.aggregator.gather
    server.aggregator.gather = lambda *given: gathered.append(honest(*given)) or gathered[0]  # type: ignore[method-assign]
    closed = aggregated(server, opened, server.orders([0, 1, 2, 3], [3]), answers())
    assert (added, closed.reports) == ([1], 1)
