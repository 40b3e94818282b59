"""A simulated federation: all parties in one process, and the scenario's truth to measure them against."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from fcil.data.augment import as_floats
from fcil.federation.class_catalogue import believable
from fcil.federation.diagnostics import Examination, RoundDiagnostics, prototype_comparisons
from fcil.federation.round_record import DETAILED, FailureRecord, RoundRecord
from fcil.federation.traffic import RoundTraffic

if TYPE_CHECKING:
    from fcil.core.messages import Diagnostics, Failure, Message, Order, Reply
    from fcil.data.datasets.dataset import Split
    from fcil.data.scenario.scenario import Scenario
    from fcil.federation.proxy import ProxyParty
    from fcil.federation.server import Closed, Opened, Server, ServerState
    from fcil.federation.simulated_clients import SimulatedClients
    from fcil.models.classifier import Classifier


class Engine(Protocol):
    """Carries out a round's orders; answers may come in any order.

    The models in them are only lent: they may lie in memory that the next round uses again.
    """

    def run(self, traffic: RoundTraffic, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        """Yield one answer per order."""
        ...

    def close(self) -> None:
        """Stop whoever works for it."""
        ...


@dataclass(frozen=True)
class SimulationState:
    """All that a round leaves to the next, apart from the sites: the server's state and, apart from it, the proxy's."""

    server: ServerState
    proxy: Message | None

    @property
    def round(self) -> int:
        """Return the number of the round to come."""
        return self.server.round

    @property
    def model(self) -> dict[str, Tensor]:
        """Return the global model."""
        return self.server.model


@dataclass(frozen=True)
class Simulation:
    """Everything a run is made of, but its state."""

    server: Server
    proxy: ProxyParty | None
    clients: SimulatedClients
    engine: Engine
    scenario: Scenario
    test: Split
    diagnostics: RoundDiagnostics = field(default_factory=RoundDiagnostics)

    def start(self) -> SimulationState:
        """Return the state before the first round."""
        return SimulationState(self.server.start(), self.proxy.start() if self.proxy else None)

    def rounds(self, state: SimulationState) -> Iterator[tuple[SimulationState, RoundRecord]]:
        """Yield the state and the record after each round, until the scenario ends."""
        while state.round < self.scenario.rounds:
            state, record = self._round(state)
            yield state, record

    def _round(self, state: SimulationState) -> tuple[SimulationState, RoundRecord]:
        began = time.perf_counter()
        server, number, watch = self.server, state.round, self.diagnostics.watch
        clients = self.scenario.clients(number)
        participants = server.choose(number, clients)
        asked = clients if server.config.monitor == "all" else participants
        with watch.phase("announce"):
            opened, traffic = self._open(state)
        self.clients.diagnostics.clear()
        orders = server.orders(asked, participants)
        replies = server.expect(opened, orders)
        for reply in watch.each("train", self.engine.run(traffic, orders)):
            with watch.phase("aggregate"):
                replies.add(reply)
        with watch.phase("aggregate"):
            closed = server.aggregate(opened, replies)
        proxy = state.proxy
        if self.proxy and proxy is not None:
            with watch.phase("proxy"):
                sent, context = opened.state.model, opened.state.context
                proxy = self.proxy.round(proxy, closed.uploads, sent, closed.state.model, context)
        following = SimulationState(closed.state, proxy)
        seconds = round(time.perf_counter() - began, 3)
        self._look(following)
        return following, self._record(number, participants, opened, closed, proxy, traffic, seconds)

    def _open(self, state: SimulationState) -> tuple[Opened, RoundTraffic]:
        """Let sites announce their classes and the head grow, and return the round with its mail."""
        server, number = self.server, state.round
        announcements = []
        if server.config.announce == "start":
            catalogue = state.server.catalogue.classes
            announcements = self.clients.announce(number, self.scenario.announcers(number), catalogue)
        announced = {name for announcement in announcements for name in believable(announcement.classes)}
        grown = server.grow(state.server, announced)
        choice = self.proxy.role.choice(state.proxy, grown.context) if self.proxy and state.proxy is not None else None
        opened = server.open(grown, choice)
        traffic = RoundTraffic(opened.broadcast, opened.models)
        for announcement in announcements:
            traffic.announced(announcement)
        return opened, traffic

    def _look(self, state: SimulationState) -> None:
        """Note the prototypes that clients show beside what the proxy rebuilt; neither of them knows the other's."""
        self.diagnostics.prototype_comparisons = []
        if self.proxy and state.proxy is not None and any(one.prototypes for one in self.clients.diagnostics.values()):
            names = dict(enumerate(state.server.catalogue.classes))
            self.diagnostics.prototype_comparisons = prototype_comparisons(
                self.clients.diagnostics, self.proxy.role.rebuilt(state.proxy), names
            )

    def _record(
        self,
        number: int,
        participants: list[int],
        opened: Opened,
        closed: Closed,
        proxy: Message | None,
        traffic: RoundTraffic,
        seconds: float,
    ) -> RoundRecord:
        """Return the record of a round: what its parties know, beside the scenario's truth."""
        measured: dict[int, Diagnostics] = dict(sorted(self.clients.diagnostics.items()))
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
            proxy=self.proxy.role.measures(proxy) if self.proxy and proxy is not None else {},
            bytes_up=traffic.up,
            bytes_down=traffic.down,
            failures=[FailureRecord(**asdict(failure)) for failure in closed.failures],  # type: ignore[typeddict-item]
            seconds=seconds,
            ends_task=self.scenario.ends_task(number),
            diverged=[client for client, found in measured.items() if not _finite_or_absent(found.loss)],
            model=opened.broadcast.model,
            teachers=opened.broadcast.teachers.named,
            members=self._members(number),
            entropies=_by_client(measured),
            traffic=traffic.phases,
        )

    def _members(self, number: int) -> dict[str, list[int]] | None:
        """Return who is in which group, in the first round and where it is not as in the round before."""
        members = self.scenario.group_members(number, DETAILED)
        same = number > 0 and members == self.scenario.group_members(number - 1, DETAILED)
        return None if same else members

    def evaluate(self, state: SimulationState, batch: int = 512) -> tuple[list[int], list[int]]:
        """Return, for each task begun so far, the right predictions and the test images of its classes."""
        found = self.examine(state, batch)
        return found.correct, found.total

    def examine(self, state: SimulationState, batch: int = 512) -> Examination:
        """Return what the model takes the test images of the tasks begun so far for."""
        net = self.server.machine.net(self.server.predictor(state.server))
        ids, catalogue = self.clients.samples.ids, state.server.catalogue.classes
        outputs = {name: output for output, name in enumerate(catalogue)}
        tasks = self.scenario.seen(max(state.round - 1, 0))  # a late class counts in the task during which it came
        classes = tuple(dict.fromkeys((*(ids[label] for task in tasks for label in task), *catalogue)))
        places = {name: place for place, name in enumerate(classes)}
        counts = torch.zeros(len(classes), len(classes), dtype=torch.int64)
        images = torch.zeros(len(classes), dtype=torch.int64)
        correct, total = [], []
        for task in tasks:
            samples = torch.isin(self.test.labels, torch.tensor(task)).nonzero().squeeze(1)
            right = 0
            for part in torch.split(samples, batch):
                labels = self.test.labels[part]
                wanted = torch.tensor([outputs.get(ids[label], -1) for label in labels.tolist()])
                rows = torch.tensor([places[ids[label]] for label in labels.tolist()], dtype=torch.int64)
                images += torch.bincount(rows, minlength=len(classes))
                if not outputs:
                    continue
                found = self._outputs(net, self.test.images[part])
                right += int((found == wanted).sum())
                columns = torch.tensor([places[name] for name in catalogue])[found]
                counts.index_put_((rows, columns), torch.ones_like(rows), accumulate=True)
            correct.append(right)
            total.append(len(samples))
        return Examination(classes, counts, images, correct, total)

    def _outputs(self, net: Classifier, images: Tensor) -> Tensor:
        with torch.inference_mode():
            scores: Tensor = net(as_floats(images.to(self.server.machine.device)))
        return scores.argmax(1).cpu()


def _by_client(measured: Mapping[int, Diagnostics]) -> dict[str, float]:
    """Return the entropy that each client measured, as far as it is a number, of clients with a low number."""
    known = {client: found.entropy for client, found in measured.items() if client < DETAILED}
    finite = {client: value for client, value in known.items() if value is not None and math.isfinite(value)}
    return {str(client): round(value, 4) for client, value in finite.items()}


def _finite_or_absent(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the finite values; JSON has no others, and `diverged` names who had them."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None
