"""Runs with everything that happened in them recorded, run once for all contracts that read them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fcil.core.errors import stage
from fcil.core.messages import Broadcast, Failure, Message, ModelState, Order, Reply, encode
from fcil.data.columns import Kind
from fcil.data.scenario.scenario import Scenario
from fcil.federation.round_record import RoundRecord
from fcil.federation.server import ServerState
from fcil.federation.simulated_clients import ClientsTable
from fcil.federation.simulation import Engine, SimulationState
from fcil.federation.traffic import RoundTraffic
from fcil.testing.trial import Trial, trial

SHORT: dict[str, Any] = {"tasks": 3, "rounds_per_task": 1, "initial_clients": 3, "joiners": 1, "participants": 2}
LONGER: dict[str, Any] = {**SHORT, "rounds_per_task": 2}  # with rounds in which nothing arrives


@dataclass(frozen=True)
class Snapshot(Message):
    """All the state there is between two rounds."""

    server: ServerState
    proxy: Message | None
    clients: dict[str, Message]
    table: ClientsTable

    @property
    def state(self) -> SimulationState:
        """Return the state of server and proxy."""
        return SimulationState(self.server, self.proxy)


def snapshot(made: Trial, state: SimulationState) -> bytes:
    """Return all the state of a trial, encoded."""
    clients = {str(client): kept for client, kept in sorted(made.clients.states().items())}
    return encode(Snapshot(state.server, state.proxy, clients, made.clients.table()))


@dataclass(frozen=True)
class Exchange:
    """The messages of a round: its messages, their recipients, and the answers."""

    broadcast: Broadcast
    models: Mapping[str, ModelState]
    orders: Sequence[Order]
    answers: list[Reply | Failure]


class Listener:
    """An engine that copies the traffic of another one."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.heard: list[Exchange] = []

    def run(self, traffic: RoundTraffic, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        """Yield the answers of the engine behind."""
        exchange = Exchange(traffic.broadcast, traffic.models, orders, [])
        self.heard.append(exchange)
        for answer in self.engine.run(traffic, orders):
            exchange.answers.append(answer)
            yield answer

    def close(self) -> None:
        """Close the engine behind."""
        self.engine.close()


@dataclass(frozen=True)
class RecordedRun:
    """A whole run: the state before its first round and after each, its records, its messages and its random draws."""

    snapshots: list[bytes]
    state: SimulationState
    records: list[RoundRecord]
    exchanges: list[Exchange]
    drew: list[str]  # the global generators that are not as they were before the run
    world: Scenario
    labels: Tensor

    def announced(self, round: int, arrivals: Sequence[int], known: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the ids in each client's arrival that are not known yet, worked out from the labels."""
        held = (sorted(set(self.labels[self.world.holding(round, client)].tolist())) for client in arrivals)
        return [tuple(str(label) for label in labels if str(label) not in known) for labels in held]


@lru_cache(maxsize=4)  # the contracts of a method follow each other
def recorded(
    method: str,
    edition: str = "fcil",
    announce: str = "start",
    variant: tuple[tuple[str, Any], ...] = (),
    network: tuple[tuple[str, Any], ...] = (),
    kind: Kind = "image",
) -> RecordedRun:
    """Return the run of a method, or of a variant with these settings, that several contracts look at."""
    federation = {"announce": announce, "merge_rounds": 0}
    made = trial(
        method, edition, scenario=LONGER, fields=dict(variant), model=dict(network), federation=federation, kind=kind
    )
    listener = Listener(made.simulation.engine)
    made.simulation = replace(made.simulation, engine=listener)
    state = made.simulation.start()
    snapshots, records = [snapshot(made, state)], []
    before = _generators()
    for following, record in made.simulation.rounds(state):
        state = following
        records.append(record)
        snapshots.append(snapshot(made, state))
    drew = [name for name, value in _generators().items() if value != before[name]]
    labels = made.clients.samples.split.labels
    return RecordedRun(snapshots, state, records, listener.heard, drew, made.simulation.scenario, labels)


def _generators() -> dict[str, Any]:
    numbers = np.random.get_state(legacy=True)
    return {
        "random": random.getstate(),
        "numpy": (numbers[0], numbers[1].tobytes(), *numbers[2:]),  # type: ignore[index]
        "torch": torch.random.get_rng_state().tolist(),
    }


@dataclass(frozen=True)
class Fit:
    """The samples that a client trained on in a round."""

    round: int
    client: int
    samples: frozenset[int]


def fits(made: Trial) -> list[Fit]:
    """Run a trial and return the samples that each client trained on: every sample that it passed to `Trainer.fit`.

    Where reports carry no model, nothing is trained, and the samples given to inference count.
    """
    found: list[Fit] = []
    role, machine = made.roles.client, made.local.machine
    run, train = role.round, machine.fit
    given: set[int] = set()
    infer = made.local.inference.infer

    def watched_infer(digest: str, state: ModelState, indices: Tensor) -> Any:
        given.update(indices.tolist())
        return infer(digest, state, indices)

    def watched_fit(net: Any, samples: Any, indices: Tensor, *arguments: Any, **named: Any) -> float:
        given.update(indices.tolist())
        return train(net, samples, indices, *arguments, **named)

    def watched_round(state: Any, broadcast: Broadcast, order: Order, current: Any, local: Any) -> Any:
        given.clear()
        answer = run(state, broadcast, order, current, local)
        if answer[1].report is not None:
            found.append(Fit(broadcast.context.round, order.client, frozenset(given)))
        return answer

    if made.simulation.server.role.averages:
        machine.fit = watched_fit  # type: ignore[method-assign]
    else:
        made.local.inference.infer = watched_infer  # type: ignore[method-assign]
        made.local.inference.once = lambda key, compute: compute()  # type: ignore[method-assign]
    role.round = watched_round  # type: ignore[method-assign]
    made.run()
    return found


def intercept(made: Trial, before: Callable[[int, int], None]) -> Trial:
    """Let `before(round, client)` happen in front of every client's round, in the middle of its fit."""
    honest = made.roles.client.round

    def intercepted(state: Any, broadcast: Broadcast, order: Order, current: Any, local: Any) -> Any:
        with stage("fit"):
            before(broadcast.context.round, order.client)
        return honest(state, broadcast, order, current, local)

    made.roles.client.round = intercepted  # type: ignore[method-assign]
    return made
