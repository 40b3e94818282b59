"""A federation of few clients on four plain patterns, and engines that change what passes between its parties."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import Any

import torch

from fcil.core.messages import Failure, Order, Reply, Report, generator
from fcil.data.datasets.dataset import Source, Split
from fcil.federation.round_record import RoundRecord
from fcil.federation.simulation import Engine, SimulationState
from fcil.federation.traffic import RoundTraffic
from fcil.testing import Trial, trial

CLASSES, SIDE = 4, 8
SCENARIO: dict[str, Any] = {
    "tasks": 2,
    "rounds_per_task": 2,
    "initial_clients": 4,
    "joiners": 1,
    "participants": 3,
    "memory": 12,
    "both_share": 0.9,
}
BRIEF_GLFC = {"perturb_steps": 1, "rebuild_evaluations": 3, "rebuild_restarts": 0}
Change = Callable[[RoundTraffic, Reply], Reply | Failure]


def _split(samples: int, seed: int) -> Split:
    labels = torch.arange(CLASSES).repeat(samples)
    images = torch.randint(0, 60, (len(labels), 1, SIDE, SIDE), generator=generator(seed))
    for label in range(CLASSES):
        row, column = 4 * (label // 2), 4 * (label % 2)
        images[labels == label, :, row : row + 4, column : column + 4] += 150
    return Split(images.to(torch.uint8), labels)


@cache
def patterns() -> Source:
    """Return images of which each class lights up a quarter of its own."""
    return Source("patterns", _split(12, 1), _split(5, 2), ("north", "east", "south", "west"))


def federation(
    method: str = "finetune",
    *,
    wrap: Callable[[Engine], Engine] | None = None,
    scenario: dict[str, Any] | None = None,
    hyper: dict[str, Any] | None = None,
    seed: int = 3,
    engine: str = "serial",
    width: int = 2,
    **settings: Any,
) -> Trial:
    """Return a federation on the patterns; `settings` are those of `[federation]`."""
    made = trial(
        method,
        seed=seed,
        engine=engine,
        workers=1,
        width=width,
        source=patterns(),
        scenario={**SCENARIO, **(scenario or {})},
        train={"batch_size": 24, "learning_rate": 0.1},
        fields=hyper,
        federation={"max_update": 1e30, **settings},  # engines below answer with models that nobody trained
    )
    if wrap is not None:
        made.simulation = replace(made.simulation, engine=wrap(made.simulation.engine))
    return made


def run_rounds(made: Trial) -> tuple[list[SimulationState], list[RoundRecord]]:
    """Return the state and the record after each round."""
    played = list(made.simulation.rounds(made.simulation.start()))
    return [state for state, _ in played], [record for _, record in played]


def timeless(records: Sequence[RoundRecord]) -> list[dict[str, Any]]:
    """Return records without what the clock says."""
    return [asdict(replace(record, seconds=0.0)) for record in records]


class Wrapping:
    """An engine around another one."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def run(self, traffic: RoundTraffic, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        yield from self.engine.run(traffic, orders)

    def close(self) -> None:
        self.engine.close()


class Changing(Wrapping):
    """Changes the replies of another engine before the server sees them."""

    def __init__(self, engine: Engine, change: Change) -> None:
        super().__init__(engine)
        self.change = change

    def run(self, traffic: RoundTraffic, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        for answer in self.engine.run(traffic, orders):
            yield self.change(traffic, answer) if isinstance(answer, Reply) else answer


class Shuffling(Wrapping):
    """Gives the answers of another engine in another order."""

    def run(self, traffic: RoundTraffic, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        answers = list(self.engine.run(traffic, orders))
        random.Random(traffic.broadcast.context.round).shuffle(answers)
        yield from answers


class Repeating(Wrapping):
    """Yields every answer twice."""

    def run(self, traffic: RoundTraffic, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        for answer in self.engine.run(traffic, orders):
            yield from (answer, answer)


class Constant(Wrapping):
    """Answers for each participant with a model that is its number everywhere, from as many samples plus one."""

    def run(self, traffic: RoundTraffic, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        sent = traffic.models[traffic.broadcast.model]
        for order in orders:
            filled = {name: torch.full_like(tensor, order.client) for name, tensor in sent.items()}
            yield Reply(order.client, Report(filled, order.client + 1) if order.participate else None)


def changed(change: Change, inner: Callable[[Engine], Engine] = lambda engine: engine) -> Callable[[Engine], Engine]:
    """Return what wraps an engine, or one that wraps it, so that its replies are changed."""
    return lambda engine: Changing(inner(engine), change)


class Losing(Wrapping):
    """An engine some of whose replies are lost after the client has kept its state."""

    def __init__(self, engine: Any, losses: set[tuple[int, int]]) -> None:
        super().__init__(engine)
        self.losses = losses
        self.lost = 0

    def run(self, traffic: RoundTraffic, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        for answer in self.engine.run(traffic, orders):
            key = (traffic.broadcast.context.round, answer.client)
            if key in self.losses and isinstance(answer, Reply) and answer.report is not None:
                self.lost += 1
                yield Failure(answer.client, key[0], "answer", "no answer in time")
            else:
                yield answer
