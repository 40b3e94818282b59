from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fcil.errors import FederationError
from fcil.federation.rounds import Engine, Federation, FederationState, RoundRecord
from fcil.local import Local
from fcil.models import Classifier
from fcil.wire import (
    Broadcast,
    Failure,
    ModelState,
    Order,
    Reply,
    Report,
    decode,
    derive_seed,
    encode,
    model_digest,
)

MakeFederation = Callable[..., Federation]
BRIEF_GLFC = {"perturb_steps": 1, "rebuild_evaluations": 3, "rebuild_restarts": 0}


class ChangingEngine:
    """Changes the answers of another engine before the server sees them."""

    def __init__(self, engine: Engine, change: Callable[[Broadcast, Reply | Failure], Reply | Failure]) -> None:
        self.engine = engine
        self.change = change

    def run(self, broadcast: Broadcast, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        for answer in self.engine.run(broadcast, orders):
            yield self.change(broadcast, answer)


class ShufflingEngine:
    """Gives the answers of another engine in another order."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.random = random.Random(seed)

    def run(self, broadcast: Broadcast, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        answers = list(self.engine.run(broadcast, orders))
        self.random.shuffle(answers)
        yield from answers


class ConstantEngine:
    """Answers for each participant with a model that is its number everywhere, from as many samples plus one."""

    def run(self, broadcast: Broadcast, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        model = broadcast.models[broadcast.model]
        for order in orders:
            filled = {name: torch.full_like(tensor, order.client) for name, tensor in model.items()}
            yield Reply(order.client, Report(filled, order.client + 1) if order.participate else None)


def play(federation: Federation) -> tuple[list[FederationState], list[RoundRecord]]:
    played = list(federation.rounds(federation.start()))
    return [state for state, _ in played], [record for _, record in played]


def timeless(records: list[RoundRecord]) -> list[dict[str, Any]]:
    return [asdict(replace(record, seconds=0.0)) for record in records]


def test_a_run_learns_separable_patterns(make_federation: MakeFederation) -> None:
    federation = make_federation(
        scenario={"tasks": 1, "rounds_per_task": 16, "class_fraction": 1.0, "initial_clients": 1, "participants": 1}
    )
    states, _ = play(federation)
    (correct,), (total,) = federation.evaluate(states[-1])
    assert total == 20
    assert correct >= 18


def test_evaluation_counts_right_predictions_by_task(make_federation: MakeFederation) -> None:
    federation = make_federation(scenario={"class_order": (2, 0, 3, 1)})
    states, _ = play(federation)
    test = federation.local.source.test
    for state, tasks in ((states[1], 1), (states[3], 2)):
        net = federation.local.net(state.model)
        with torch.no_grad():
            outputs = net(test.images.float() / 255).argmax(1).tolist()
        predicted = [state.catalogue.classes[output] for output in outputs]
        expected = [
            sum(guess == label for guess, label in zip(predicted, test.labels.tolist(), strict=True) if label in task)
            for task in ((2, 0), (3, 1))[:tasks]
        ]
        assert federation.evaluate(state) == (expected, [10] * tasks)
        assert federation.evaluate(state, batch=3) == (expected, [10] * tasks)


def test_records_tell_the_scenarios_truth(make_federation: MakeFederation) -> None:
    federation = make_federation(scenario={"both_share": 0.5})
    states, records = play(federation)
    plan = federation.scenario
    assert [record.round for record in records] == [0, 1, 2, 3]
    assert [record.task for record in records] == [0, 0, 1, 1]
    assert [record.classes for record in records] == [2, 2, 4, 4]
    assert [record.clients for record in records] == [4, 4, 5, 5]
    assert [record.groups for record in records] == [{"S_o": 0, "S_b": 0, "S_n": 4}] * 2 + [
        {"S_o": 2, "S_b": 2, "S_n": 1}
    ] * 2
    for number, record in enumerate(records):
        assert record.participants == plan.participants(number)
        assert record.arrivals == [client for client in plan.clients(number) if plan.new_classes(number, client)]
        assert record.alarms == record.arrivals, "the label detector neither misses nor errs"
        assert record.failures == []
        assert record.bytes_up > 0
        assert record.bytes_down > 0
        assert len(states[number].model["head.bias"]) == record.classes


def test_a_round_costs_what_its_messages_weigh(make_federation: MakeFederation) -> None:
    seen: list[tuple[Broadcast, Reply | Failure]] = []

    def watch(broadcast: Broadcast, answer: Reply | Failure) -> Reply | Failure:
        seen.append((broadcast, answer))
        return answer

    federation = make_federation(wrap=lambda engine: ChangingEngine(engine, watch))
    _, record = next(federation.rounds(federation.start()))
    reports = [answer.report for _, answer in seen if isinstance(answer, Reply) and answer.report]
    assert len(reports) == record.reports == 3
    assert record.bytes_up == sum(len(encode(report)) for report in reports)
    assert all(
        not isinstance(answer, Reply) or (answer.report is not None) == (answer.client in record.participants)
        for _, answer in seen
    )


def test_the_seed_alone_decides_a_run(make_federation: MakeFederation) -> None:
    before = torch.random.get_rng_state()
    first, again, other = (
        play(make_federation("icarl", seed=seed, scenario={"rounds_per_task": 1})) for seed in (3, 3, 4)
    )
    assert model_digest(first[0][-1].model) == model_digest(again[0][-1].model)
    assert timeless(first[1]) == timeless(again[1])
    assert model_digest(first[0][-1].model) != model_digest(other[0][-1].model)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(("method", "hyper"), [("icarl", {}), ("glfc", BRIEF_GLFC)])
def test_the_order_of_answers_does_not_matter(
    make_federation: MakeFederation, method: str, hyper: dict[str, Any]
) -> None:
    options = {"hyper": hyper, "scenario": {"rounds_per_task": 1}}
    straight_states, straight = play(make_federation(method, **options))
    shuffled_states, shuffled = play(make_federation(method, wrap=lambda engine: ShufflingEngine(engine, 5), **options))
    assert timeless(shuffled) == timeless(straight)
    assert [encode(state) for state in shuffled_states] == [encode(state) for state in straight_states]


def test_a_state_that_was_stored_and_read_goes_on_alike(make_federation: MakeFederation) -> None:
    federation = make_federation("icarl")
    state, _ = next(federation.rounds(federation.start()))
    read = decode(encode(state), FederationState)
    engine_states = dict(federation.engine.store.states)
    following, record = next(federation.rounds(state))
    federation.engine.store.states = engine_states
    again, record_again = next(federation.rounds(read))
    assert encode(following) == encode(again)
    assert timeless([record]) == timeless([record_again])


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


UNSOUND: dict[str, tuple[Callable[[Report], Report], str]] = {
    "not a number": (changed_parameter("head.bias", poisoned(float("nan"))), "head.bias"),
    "infinite": (changed_parameter("backbone.stem.0.weight", poisoned(float("-inf"))), "backbone.stem.0.weight"),
    "infinite statistics": (
        changed_parameter("backbone.stem.1.running_var", poisoned(float("inf"))),
        "backbone.stem.1.running_var",
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
}


def mean_of_constants(clients: Sequence[int], averaging: str) -> float:
    weights = [client + 1 if averaging == "samples" else 1 for client in clients]
    return sum(client * weight for client, weight in zip(clients, weights, strict=True)) / sum(weights)


def values_of(state: FederationState) -> list[float]:
    """Return the distinct values of the model's floats."""
    floats = [tensor.flatten() for tensor in state.model.values() if tensor.is_floating_point()]
    distinct: list[float] = torch.cat(floats).unique().tolist()
    return distinct


@pytest.mark.parametrize("averaging", ["uniform", "samples"])
@pytest.mark.parametrize(("spoil", "named"), UNSOUND.values(), ids=UNSOUND.keys())
def test_an_unsound_update_is_refused_and_the_run_goes_on(
    make_federation: MakeFederation, spoil: Callable[[Report], Report], named: str, averaging: str
) -> None:
    def spoil_one(broadcast: Broadcast, answer: Reply | Failure) -> Reply | Failure:
        if isinstance(answer, Reply) and answer.report and answer.client == victim and broadcast.moment.round == 1:
            return replace(answer, report=spoil(answer.report))
        return answer

    federation = make_federation(
        wrap=lambda engine: ChangingEngine(ConstantEngine(), spoil_one),
        averaging=averaging,
        scenario={"tasks": 1, "rounds_per_task": 3},
    )
    victim = federation.scenario.participants(1)[1]
    states, records = play(federation)
    (failure,) = records[1].failures
    assert (failure["client"], failure["round"], failure["stage"]) == (victim, 1, "update")
    assert f"client {victim} " in failure["reason"]
    assert named in failure["reason"]
    assert [record.failures for record in (records[0], records[2])] == [[], []]
    assert [record.reports for record in records] == [3, 2, 3]
    for number, state in enumerate(states):
        sound = [client for client in federation.scenario.participants(number) if (number, client) != (1, victim)]
        assert values_of(state) == pytest.approx([mean_of_constants(sound, averaging)])


def test_a_client_that_fails_is_in_the_record_with_its_stage(
    make_federation: MakeFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = make_federation()
    fit = Local.fit
    victim_seed = derive_seed(derive_seed(federation.seed, "client", 0, federation.scenario.participants(0)[0]), "fit")

    def failing(self: Local, net: Classifier, indices: Tensor, loss: Any, rates: Any, seed: int, *more: Any) -> float:
        if seed == victim_seed:
            raise MemoryError("no room")
        return fit(self, net, indices, loss, rates, seed, *more)

    monkeypatch.setattr(Local, "fit", failing)
    _, records = play(federation)
    victim = federation.scenario.participants(0)[0]
    assert records[0].failures == [{"client": victim, "round": 0, "stage": "fit", "reason": "MemoryError: no room"}]
    assert records[0].reports == 2
    assert len(records) == 4


def test_too_few_answers_stop_the_run_and_say_who_failed(make_federation: MakeFederation) -> None:
    def lose_participants(broadcast: Broadcast, answer: Reply | Failure) -> Reply | Failure:
        if broadcast.moment.round == 1 and answer.client in lost:
            return Failure(answer.client, 1, "fit", "power cut")
        return answer

    def with_least(least: int) -> Federation:
        return make_federation(
            wrap=lambda engine: ChangingEngine(ConstantEngine(), lose_participants), min_participants=least
        )

    lost = make_federation().scenario.participants(1)[:2]
    assert len(play(with_least(1))[1]) == 4
    with pytest.raises(FederationError) as caught:
        play(with_least(2))
    message = str(caught.value)
    assert "round 1: 1 participants answered" in message
    assert "federation.min_participants" in message
    for client in lost:
        assert f"client {client} failed in round 1 at stage fit: power cut" in message


def test_bystanders_do_not_count_as_participants(make_federation: MakeFederation) -> None:
    def lose(broadcast: Broadcast, answer: Reply | Failure) -> Reply | Failure:
        if answer.client in federation.scenario.participants(broadcast.moment.round):
            return Failure(answer.client, broadcast.moment.round, "fit", "power cut")
        return answer

    federation = make_federation(wrap=lambda engine: ChangingEngine(ConstantEngine(), lose))
    with pytest.raises(FederationError, match="0 participants answered"):
        play(federation)


def test_a_federation_with_too_few_clients_says_so(make_federation: MakeFederation) -> None:
    federation = make_federation(
        wrap=lambda engine: ConstantEngine(), scenario={"leaves": ({"round": 1, "clients": 3},)}, min_participants=2
    )
    with pytest.raises(FederationError, match=r"round 1: 1 participants answered.*1 were asked"):
        play(federation)


@pytest.mark.parametrize("averaging", ["uniform", "samples"])
def test_the_next_model_is_the_mean_of_the_participants(make_federation: MakeFederation, averaging: str) -> None:
    federation = make_federation(wrap=lambda engine: ConstantEngine(), averaging=averaging)
    states, records = play(federation)
    for state, record in zip(states, records, strict=True):
        assert values_of(state) == pytest.approx([mean_of_constants(record.participants, averaging)])


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, set[int]]]:
    """Return, for each local fit, the outputs of the network and the classes of the samples."""
    seen: list[tuple[int, set[int]]] = []
    fit = Local.fit

    def watching(self: Local, net: Classifier, indices: Tensor, *rest: Any) -> float:
        seen.append((net.head.out_features, set(self.labels(indices).tolist())))
        return fit(self, net, indices, *rest)

    monkeypatch.setattr(Local, "fit", watching)
    return seen


def played_by_round(
    federation: Federation, fits: list[tuple[int, set[int]]]
) -> tuple[list[RoundRecord], list[list[tuple[int, set[int]]]]]:
    records, by_round = [], []
    for _, record in federation.rounds(federation.start()):
        records.append(record)
        by_round.append(list(fits))
        fits.clear()
    return records, by_round


@pytest.mark.parametrize("method", ["finetune", "icarl"])
def test_classes_announced_with_the_reply_wait_one_round(
    make_federation: MakeFederation, fits: list[tuple[int, set[int]]], method: str
) -> None:
    federation = make_federation(method, announce="reply", scenario={"rounds_per_task": 3, "class_order": (1, 3, 0, 2)})
    records, by_round = played_by_round(federation, fits)
    assert [record.classes for record in records] == [0, 2, 2, 2, 4, 4]
    assert by_round[0] == []
    assert [{label for _, labels in each for label in labels} for each in by_round[1:4]] == [{1, 3}] * 3
    assert {label for _, labels in by_round[4] for label in labels} >= {0, 2}
    assert [record.failures for record in records] == [[]] * 6


def test_classes_announced_at_the_start_are_trained_at_once(
    make_federation: MakeFederation, fits: list[tuple[int, set[int]]]
) -> None:
    federation = make_federation(announce="start", scenario={"rounds_per_task": 3, "class_order": (1, 3, 0, 2)})
    records, by_round = played_by_round(federation, fits)
    assert [record.classes for record in records] == [2, 2, 2, 4, 4, 4]
    assert [{outputs for outputs, _ in each} for each in by_round] == [{2}] * 3 + [{4}] * 3
    assert {label for _, labels in by_round[0] for label in labels} == {1, 3}
    assert {label for _, labels in by_round[3] for label in labels} >= {0, 2}


def test_ids_get_outputs_in_ascending_order_a_block_a_task(make_federation: MakeFederation) -> None:
    states, _ = play(make_federation(wrap=lambda engine: ConstantEngine(), scenario={"class_order": (3, 1, 2, 0)}))
    assert [state.catalogue.classes for state in states] == [(1, 3)] * 2 + [(1, 3, 0, 2)] * 2
    assert [state.catalogue.blocks for state in states] == [(2,)] * 2 + [(2, 4)] * 2


def test_growths_within_the_merging_rounds_are_one_block(make_federation: MakeFederation) -> None:
    states, _ = play(make_federation(wrap=lambda engine: ConstantEngine(), merge_rounds=2))
    assert states[-1].catalogue.blocks == (4,)


@pytest.mark.parametrize("method", ["finetune", "glfc"])
def test_a_model_without_outputs_is_evaluated_as_always_wrong(make_federation: MakeFederation, method: str) -> None:
    federation = make_federation(method, announce="reply", hyper=BRIEF_GLFC if method == "glfc" else {})
    state, record = next(federation.rounds(federation.start()))
    assert record.classes == 0
    assert federation.evaluate(state) == ([0], [10])


def test_growing_keeps_the_outputs_that_exist(make_federation: MakeFederation) -> None:
    sent: list[ModelState] = []

    def watch(broadcast: Broadcast, answer: Reply | Failure) -> Reply | Failure:
        sent.append(broadcast.models[broadcast.model])
        return answer

    federation = make_federation(wrap=lambda engine: ChangingEngine(engine, watch))
    states, _ = play(federation)
    before, after = states[1].model, sent[-1 - len(federation.scenario.clients(3))]
    assert torch.equal(after["head.weight"][:2], before["head.weight"])
    assert torch.equal(after["head.bias"][:2], before["head.bias"])
    assert len(after["head.bias"]) == 4


class RepeatingEngine:
    """Yields every answer twice."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def run(self, broadcast: Broadcast, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        for answer in self.engine.run(broadcast, orders):
            yield answer
            yield answer


def test_a_client_that_answers_twice_counts_once(make_federation: MakeFederation) -> None:
    once, _ = play(make_federation())
    twice, records = play(make_federation(wrap=RepeatingEngine))
    assert model_digest(twice[-1].model) == model_digest(once[-1].model)
    assert {failure["reason"] for record in records for failure in record.failures} == {
        f"client {client} answered twice" for client in range(5)
    }


def test_a_report_from_a_client_that_was_not_asked_is_refused(make_federation: MakeFederation) -> None:
    def volunteer(broadcast: Broadcast, answer: Reply | Failure) -> Reply | Failure:
        assert isinstance(answer, Reply)
        return replace(answer, report=answer.report or Report(broadcast.models[broadcast.model], 5))

    honest, true_records = play(make_federation())
    states, records = play(make_federation(wrap=lambda engine: ChangingEngine(engine, volunteer)))
    assert model_digest(states[-1].model) == model_digest(honest[-1].model)
    bystanders = [record.clients - len(record.participants) for record in true_records]
    assert [len(record.failures) for record in records] == bystanders
    assert all("was not asked to train" in failure["reason"] for failure in records[0].failures)


def test_a_measure_that_is_not_finite_stays_out_of_the_record(make_federation: MakeFederation) -> None:
    def spoil(broadcast: Broadcast, answer: Reply | Failure) -> Reply | Failure:
        assert isinstance(answer, Reply)
        return replace(answer, diagnostics=replace(answer.diagnostics, entropy=float("nan"), loss=float("inf")))

    _, records = play(make_federation(wrap=lambda engine: ChangingEngine(engine, spoil)))
    assert [(record.entropy, record.loss) for record in records] == [(None, None)] * len(records)
    assert all(record.diverged for record in records)


def test_a_refused_update_keeps_the_alarm_it_came_with(make_federation: MakeFederation) -> None:
    def spoil(broadcast: Broadcast, answer: Reply | Failure) -> Reply | Failure:
        if isinstance(answer, Reply) and answer.report and broadcast.moment.round == 0:
            broken = {
                name: torch.full_like(t, float("nan")) if t.is_floating_point() else t
                for name, t in answer.report.model.items()
            }
            return replace(answer, report=replace(answer.report, model=broken))
        return answer

    first = min(make_federation().scenario.participants(0))
    federation = make_federation(
        wrap=lambda engine: ChangingEngine(
            engine, lambda sent, answer: spoil(sent, answer) if answer.client == first else answer
        )
    )
    _, records = play(federation)
    assert [failure["client"] for failure in records[0].failures] == [first]
    assert first in records[0].alarms
    _, honest = play(make_federation())
    assert records[0].bytes_up == honest[0].bytes_up
