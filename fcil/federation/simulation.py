"""A simulated federation: all parties in one process, and the scenario's truth to measure them against."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

import torch
from torch import Tensor

from fcil.data.scenario import Scenario
from fcil.data.source import Split
from fcil.data.transforms import as_floats
from fcil.federation.catalogue import believable
from fcil.federation.coordinator import Closed, Coordinator, CoordinatorState
from fcil.federation.proxy import ProxyParty
from fcil.federation.record import FailureRecord, RoundRecord
from fcil.federation.sites import Sites
from fcil.federation.traffic import Post
from fcil.models import Classifier
from fcil.wire import Diagnostics, Failure, Message, Order, Reply


class Engine(Protocol):
    """Carries out a round's orders; answers may come in any order.

    The models in them are only lent: they may lie in memory that the next round uses again.
    """

    def run(self, post: Post, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        """Yield one answer per order."""
        ...

    def close(self) -> None:
        """Stop whoever works for it."""
        ...


@dataclass(frozen=True)
class SimulationState:
    """All that a round leaves to the next, apart from the sites: the server's state and, apart from it, the proxy's."""

    coordinator: CoordinatorState
    proxy: Message | None

    @property
    def round(self) -> int:
        """Return the number of the round to come."""
        return self.coordinator.round

    @property
    def model(self) -> dict[str, Tensor]:
        """Return the global model."""
        return self.coordinator.model


@dataclass(frozen=True)
class Simulation:
    """Everything a run is made of, but its state."""

    coordinator: Coordinator
    proxy: ProxyParty | None
    sites: Sites
    engine: Engine
    scenario: Scenario
    test: Split

    def start(self) -> SimulationState:
        """Return the state before the first round."""
        return SimulationState(self.coordinator.start(), self.proxy.start() if self.proxy else None)

    def rounds(self, state: SimulationState) -> Iterator[tuple[SimulationState, RoundRecord]]:
        """Yield the state and the record after each round, until the scenario ends."""
        while state.round < self.scenario.rounds:
            state, record = self._play(state)
            yield state, record

    def _play(self, state: SimulationState) -> tuple[SimulationState, RoundRecord]:
        began = time.perf_counter()
        coordinator, number = self.coordinator, state.round
        clients = self.scenario.clients(number)
        participants = coordinator.choose(number, clients)
        asked = clients if coordinator.config.monitor == "all" else participants
        announcements = []
        if coordinator.config.announce == "start":
            catalogue = state.coordinator.catalogue.classes
            announcements = self.sites.announce(number, self.scenario.announcers(number), catalogue)
        announced = {name for announcement in announcements for name in believable(announcement.classes)}
        grown = coordinator.grow(state.coordinator, announced)
        choice = self.proxy.choice(state.proxy, grown.moment) if self.proxy and state.proxy is not None else None
        opened = coordinator.open(grown, choice)
        post = Post(opened.broadcast, opened.models)
        for announcement in announcements:
            post.announced(announcement)
        self.sites.diagnostics.clear()
        orders = coordinator.orders(asked, participants)
        closed = coordinator.close(opened, orders, self.engine.run(post, orders))
        proxy = state.proxy
        if self.proxy and proxy is not None:
            proxy = self.proxy.round(proxy, closed.uploads, grown.model, closed.state.model, grown.moment)
        following = SimulationState(closed.state, proxy)
        seconds = round(time.perf_counter() - began, 3)
        return following, self._record(number, participants, closed, proxy, post, seconds)

    def _record(
        self, number: int, participants: list[int], closed: Closed, proxy: Message | None, post: Post, seconds: float
    ) -> RoundRecord:
        """Return the record of a round: what its parties know, beside the scenario's truth."""
        measured: dict[int, Diagnostics] = dict(sorted(self.sites.diagnostics.items()))
        return RoundRecord(
            round=number,
            task=self.scenario.task(number),
            classes=len(closed.state.catalogue.classes),
            clients=len(self.scenario.clients(number)),
            groups=self.scenario.group_sizes(number),
            participants=participants,
            reports=closed.reports,
            alarms=[client for client, found in measured.items() if found.alarm],
            arrivals=self.scenario.arrivals(number),
            entropy=_mean(found.entropy for found in measured.values()),
            loss=_mean(found.loss for found in measured.values()),
            proxy=self.proxy.measures(proxy) if self.proxy and proxy is not None else {},
            bytes_up=post.up,
            bytes_down=post.down,
            failures=[FailureRecord(**asdict(failure)) for failure in closed.failures],  # type: ignore[typeddict-item]
            seconds=seconds,
            ends_task=self.scenario.ends_task(number),
            diverged=[client for client, found in measured.items() if not _finite_or_absent(found.loss)],
        )

    def evaluate(self, state: SimulationState, batch: int = 512) -> tuple[list[int], list[int]]:
        """Return, for each task begun so far, the right predictions and the test images of its classes."""
        net = self.coordinator.machine.net(self.coordinator.predictor(state.coordinator))
        outputs = {name: output for output, name in enumerate(state.coordinator.catalogue.classes)}
        correct, total = [], []
        for task in self.scenario.tasks[: self.scenario.task(max(state.round - 1, 0)) + 1]:
            samples = torch.isin(self.test.labels, torch.tensor(task)).nonzero().squeeze(1)
            parts = torch.split(samples, batch)
            right = [self._right(net, self.test.labels[part], self.test.images[part], outputs) for part in parts]
            correct.append(sum(right))
            total.append(len(samples))
        return correct, total

    def _right(self, net: Classifier, labels: Tensor, images: Tensor, outputs: dict[str, int]) -> int:
        if not outputs:
            return 0
        ids = self.sites.samples.ids
        wanted = torch.tensor([outputs.get(ids[label], -1) for label in labels.tolist()])
        with torch.inference_mode():
            scores = net(as_floats(images.to(self.coordinator.machine.device)))
        return int((scores.argmax(1).cpu() == wanted).sum())


def _finite_or_absent(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the finite values; JSON has no others, and `diverged` names who had them."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None
