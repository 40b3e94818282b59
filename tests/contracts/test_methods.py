"""What every registered method must do; a new method file is held to it without a line of test."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from support.blobs import CLASSES, Trial, blobs, trial
from torch import Tensor

from fcil.data.scenario import Scenario
from fcil.federation.rounds import FederationState
from fcil.methods import methods
from fcil.optimiser import PAPER
from fcil.wire import Message, decode, encode, model_digest

METHODS = list(methods())
PRESETS = [(name, preset) for name, method in methods().items() for preset in method.config.presets]


@dataclass(frozen=True)
class Snapshot(Message):
    """All the state there is between two rounds."""

    federation: FederationState
    clients: dict[str, Message]
    entropy: Tensor


def snapshot(made: Trial, state: FederationState) -> bytes:
    clients = {str(client): kept for client, kept in sorted(made.store.states.items())}
    return encode(Snapshot(state, clients, torch.from_numpy(made.store.entropy)))


def accuracy(made: Trial, state: FederationState) -> list[float]:
    correct, total = made.federation.evaluate(state)
    return [right / images for right, images in zip(correct, total, strict=True)]


def is_finite(state: FederationState) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in state.model.values())


@pytest.mark.parametrize("method", METHODS)
def test_learns_blobs_above_chance(method: str) -> None:
    scenario = {
        "tasks": 2,
        "rounds_per_task": 3,
        "initial_clients": 2,
        "participants": 2,
        "class_fraction": 1.0,
        "memory": 30,
    }
    train = {"epochs": 6, "batch_size": 16, "learning_rate": 0.1}
    made = trial(method, source=blobs(per_class=20), scenario=scenario, train=train)
    states = [state for state, _ in made.federation.rounds(made.federation.start())]
    assert accuracy(made, states[2])[0] > 0.6  # chance among three classes is 0.33
    assert sum(accuracy(made, states[-1])) / 2 > 1.2 / CLASSES


@pytest.mark.parametrize(("method", "preset"), PRESETS)
def test_every_preset_plays_to_the_end_on_coloured_images_with_a_finite_model(method: str, preset: str) -> None:
    fields = {"rebuild_keep": 2} if preset == "official" and method.startswith("glfc") else {}
    made = trial(method, preset, source=blobs(per_class=10, channels=3), fields=fields)
    state, records = made.play()
    assert is_finite(state)
    assert [record.failures for record in records] == [[]] * 6
    assert len(state.catalogue.classes) == CLASSES


@pytest.mark.parametrize("method", METHODS)
def test_trains_as_the_paper_or_its_own_source_does_when_asked_to(method: str) -> None:
    def digest(optimiser: str) -> str:
        scenario = {"tasks": 2, "rounds_per_task": 1}
        state, records = trial(method, fields={"optimiser": optimiser}, scenario=scenario).play()
        assert is_finite(state)
        assert [record.failures for record in records] == [[], []]
        return model_digest(state.model)

    digests = {optimiser: digest(optimiser) for optimiser in ("train", "paper", "gentle", "native")}
    assert len(set(digests.values())) == 4 - (methods()[method].config.native == PAPER)
    assert (digests["paper"] == digests["native"]) == (methods()[method].config.native == PAPER)


class LyingScenario:
    """Hands out the same samples and the same draws, but tells a false story about tasks and groups."""

    def __init__(self, truth: Scenario) -> None:
        self.truth = truth
        self.rounds, self.tasks, self.config = truth.rounds, truth.tasks, truth.config
        self.clients, self.participants, self.holding = truth.clients, truth.participants, truth.holding
        self.classes_held = truth.classes_held

    def task(self, round: int) -> int:
        return 41 - round

    def ends_task(self, round: int) -> bool:
        return not self.truth.ends_task(round)

    def group(self, round: int, client: int) -> str:
        return "S_o"

    def group_sizes(self, round: int) -> dict[str, int]:
        return {"S_o": 7, "S_b": 0, "S_n": 0}

    def new_classes(self, round: int, client: int) -> bool:
        return not self.truth.new_classes(round, client)

    def arrivals(self, round: int) -> list[int]:
        return [client for client in self.clients(round) if self.new_classes(round, client)]


@pytest.mark.parametrize("method", METHODS)
def test_sees_no_task_id(method: str) -> None:
    honest, lied_to = trial(method), trial(method)
    lied_to.federation = replace(lied_to.federation, scenario=LyingScenario(lied_to.federation.scenario))  # type: ignore[arg-type]
    expected, true_records = honest.play()
    state, records = lied_to.play()
    assert snapshot(lied_to, state) == snapshot(honest, expected)
    assert [record.alarms for record in records] == [record.alarms for record in true_records]
    assert [record.arrivals for record in records] != [record.arrivals for record in true_records]


@pytest.mark.parametrize("method", METHODS)
def test_leaves_global_random_generators_untouched(method: str) -> None:
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state()
    trial(method).play()
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.random.get_rng_state(), before[2])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("preset", "announce"), [("fcil", "start"), ("official", "reply")])
def test_is_cut_after_every_round_and_resumed_to_the_same_bits(method: str, preset: str, announce: str) -> None:
    if preset not in methods()[method].config.presets:
        preset = "fcil"

    def fresh() -> Trial:
        return trial(method, preset, federation={"announce": announce})

    made = fresh()
    state = made.federation.start()
    kept = [snapshot(made, state)]
    for state, _ in made.federation.rounds(state):  # noqa: B020
        kept.append(snapshot(made, state))
    for before, after in pairwise(kept):
        resumed = fresh()
        loaded = decode(before, Snapshot)
        resumed.store.states = {int(client): kept_state for client, kept_state in loaded.clients.items()}
        resumed.store.entropy = loaded.entropy.numpy().copy()
        state, _ = next(resumed.federation.rounds(loaded.federation))
        assert snapshot(resumed, state) == after


def failing(made: Trial, victim: int, at: int) -> Trial:
    """Make one client raise in one round, in the middle of its fit."""
    honest = made.roles.client.round

    def stumbling(state: Any, broadcast: Any, order: Any, arrival: Any, local: Any) -> Any:
        if order.client == victim and broadcast.moment.round == at:
            with local.stage("fit"):
                raise RuntimeError("the disk is full")
        return honest(state, broadcast, order, arrival, local)

    made.roles.client.round = stumbling  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize("method", METHODS)
def test_survives_a_failing_participant(method: str) -> None:
    world = trial(method).federation.scenario
    victim = next(client for client in world.participants(2) if len(world.holding(2, client)))
    made = failing(trial(method), victim, at=2)
    state, records = made.play()
    expected = {"client": victim, "round": 2, "stage": "fit", "reason": "RuntimeError: the disk is full"}
    assert [failure for record in records for failure in record.failures] == [expected]
    assert len(records) == 6
    assert is_finite(state)
    untouched, honest = trial(method).play()
    assert records[2].reports == honest[2].reports - 1
    assert model_digest(state.model) != model_digest(untouched.model)


def classes_held(world: Scenario, round: int, client: int) -> int:
    return len(set(blobs(per_class=10).train.labels[world.holding(round, client)].tolist()))


AWKWARD = {
    "a client with one class": ({"class_fraction": 0.5}, {}, lambda world: classes_held(world, 0, 0) == 1),
    "a last batch of one sample": ({}, {"batch_size": 19}, lambda world: len(world.holding(0, 0)) % 19 == 1),
    "a memory smaller than its classes": ({"memory": 1}, {}, lambda world: classes_held(world, 0, 0) > 1),
    "no memory": ({"memory": 0}, {}, lambda world: world.config.memory == 0),
    "a client with one sample": (
        {"split": "disjoint", "initial_clients": 40, "joiners": 0, "participants": 12, "class_fraction": 0.5},
        {"batch_size": 16},
        lambda world: 1 in [len(world.holding(0, client)) for client in world.participants(0)],
    ),
    "existing clients without new data": (
        {"both_share": 0.0, "joiners": 2, "participants": 6},
        {},
        lambda world: world.group(2, 0) == "S_o" and 0 in world.participants(2),
    ),
    "arrivals that come and go": (
        {"groups": "each-round", "both_share": 0.5, "participants": 5, "rounds_per_task": 3},
        {},
        lambda world: any(world.group(r, c) != world.group(r + 1, c) for r in (3, 4, 6) for c in world.clients(r)),
    ),
    "clients that come and go": (
        {"leavers": 1, "joins": [{"round": 1, "clients": 2}]},
        {},
        lambda world: not set(world.clients(1)) <= set(world.clients(5)),
    ),
    "a federation of one": (
        {"initial_clients": 1, "joiners": 0, "participants": 1},
        {},
        lambda world: world.clients(5) == [0],
    ),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", AWKWARD)
def test_survives_an_awkward_scenario(method: str, case: str) -> None:
    scenario, train, premise = AWKWARD[case]
    made = trial(method, scenario=scenario, train={"epochs": 1, **train})
    assert premise(made.federation.scenario), "the scenario is not the awkward one it should be"
    state, records = made.play()
    assert is_finite(state)
    assert all(not record.failures for record in records)
    assert sum(record.reports for record in records) > 0


@pytest.mark.parametrize("method", METHODS)
def test_memory_stays_within_its_budget(method: str) -> None:
    made = trial(method, train={"epochs": 1})
    for _ in made.federation.rounds(made.federation.start()):
        memories = [kept.memory for kept in made.store.states.values() if hasattr(kept, "memory")]
        assert all(len(memory) <= 12 for memory in memories)


@pytest.mark.parametrize("method", METHODS)
def test_plays_when_only_participants_look_at_their_data(method: str) -> None:
    made = trial(method, federation={"monitor": "participants"}, scenario={"participants": 2})
    asked: list[int] = []
    honest = made.roles.client.round

    def noting(state: Any, broadcast: Any, order: Any, current: Any, local: Any) -> Any:
        asked.append(order.client)
        return honest(state, broadcast, order, current, local)

    made.roles.client.round = noting  # type: ignore[method-assign]
    state, records = made.play()
    assert asked == [client for record in records for client in record.participants]
    assert sorted(made.store.states) == sorted(set(asked))
    assert is_finite(state)
    assert len(state.catalogue.classes) == CLASSES  # ids are announced by all
