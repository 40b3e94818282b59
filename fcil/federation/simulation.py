"""A simulated federation: all parties in one process, and the scenario's truth to measure them against."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from fcil.data.datasets.dataset import Split
from fcil.data.samples import Samples
from fcil.federation.attacks.base import TARGET
from fcil.federation.calibration import Scored
from fcil.federation.diagnostics import ModelEvaluation, RoundDiagnostics, prototype_comparisons
from fcil.federation.masking.messages import digest_of
from fcil.federation.round_record import (
    DETAILED,
    PrivacyRecord,
    RoundRecord,
    exclusions,
    failure_record,
    privacy_record,
)
from fcil.federation.traffic import RoundTraffic

if TYPE_CHECKING:
    from fcil.core.messages import Diagnostics, Failure, Message, Order, Reply
    from fcil.data.scenario.scenario import Scenario
    from fcil.federation.attacks.base import Attack
    from fcil.federation.masking.simulated import SimulatedMasking
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
        """Stop its workers."""
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
    """All parts of a run, but its state."""

    server: Server
    proxy: ProxyParty | None
    clients: SimulatedClients
    engine: Engine
    scenario: Scenario
    test: Split
    diagnostics: RoundDiagnostics = field(default_factory=RoundDiagnostics)
    attack: Attack | None = None  # of hostile clients
    masking: SimulatedMasking | None = None  # where reports are masked

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
        self.clients.seconds.clear()
        keys = None
        if self.masking is not None:
            keys, self.clients.masks = self.masking.begin(number, digest_of(opened.broadcast), participants, traffic)
            participants = participants if keys else []
        orders = server.orders(asked, participants)
        replies = server.expect(opened, orders)
        for reply in watch.each("train", self.engine.run(traffic, orders)):
            with watch.phase("aggregate"):
                replies.add(reply)
        watch.divide("train", self.clients.seconds)
        with watch.phase("aggregate"):
            if self.masking is not None:
                self.masking.end(keys, replies, traffic)
            closed = server.aggregate(opened, replies)
        proxy = state.proxy
        if self.proxy and proxy is not None:
            with watch.phase("proxy"):
                sent, context = opened.state.model, opened.state.context
                proxy = self.proxy.round(proxy, closed.uploads, sent, closed.state.model, context)
        following, closed.not_applied = self._review(SimulationState(closed.state, proxy), closed.not_applied)
        seconds = round(time.perf_counter() - began, 3)
        self._look(following)
        return following, self._record(number, participants, opened, closed, proxy, traffic, seconds)

    def _review(self, state: SimulationState, reason: str) -> tuple[SimulationState, str]:
        """Measure the model where federation.max_drop asks for it; test images stand for the hold-out of sites."""
        if self.server.config.max_drop is None or not state.server.catalogue.classes:
            return state, reason
        correct, total = self.evaluate(state)
        kept, dropped = self.server.review(state.server, {"test images": 100 * sum(correct) / sum(total)})
        return replace(state, server=kept), reason or dropped

    def _open(self, state: SimulationState) -> tuple[Opened, RoundTraffic]:
        """Let sites announce their classes and the head grow, and return the round with its mail."""
        server, number = self.server, state.round
        announcements, admission = [], server.admission(state.server, number)
        if server.config.announce == "start":
            clients = self.scenario.announcers(number)
            announcements = self.clients.announce(number, clients, state.server.catalogue.classes)
            for client, announcement in zip(clients, announcements, strict=True):
                admission.announce(client, announcement.classes)
        grown = server.grow(replace(state.server, ledger=admission.ledger), admission.ids)
        choice = self.proxy.role.choice(state.proxy, grown.context) if self.proxy and state.proxy is not None else None
        opened = server.open(grown, choice)
        traffic = RoundTraffic(opened.broadcast, opened.models)
        for announcement in announcements:
            traffic.announced(announcement)
        return opened, traffic

    def _look(self, state: SimulationState) -> None:
        """Record the clients' prototypes beside the proxy's rebuilt ones; neither party knows the other's."""
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
        """Return the record of a round: its parties' figures beside the scenario's truth."""
        measured: dict[int, Diagnostics] = dict(sorted(self.clients.diagnostics.items()))
        return RoundRecord(
            round=number + 1,
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
            failures=[failure_record(failure) for failure in closed.failures],
            seconds=seconds,
            ends_task=self.scenario.ends_task(number),
            diverged=[client for client, found in measured.items() if not _finite_or_absent(found.loss)],
            model=opened.broadcast.model,
            teachers=opened.broadcast.teachers.named,
            members=self._members(number),
            entropies=_by_client(measured),
            traffic=traffic.phases,
            excluded=exclusions(closed.excluded),
            not_applied=closed.not_applied,
            clipped=closed.clipped,
            privacy=self._privacy(closed.state),
        )

    def _privacy(self, state: ServerState) -> PrivacyRecord | None:
        """Return the guarantee for every client, or for the image of all clients that was used most often."""
        if self.server.hidden is not None:
            hidden = self.server.hidden
            return {**privacy_record(hidden.spent(state.round), hidden.config.delta), "unit": "client"}
        found = self.server.role.guarantee(state.role_state)
        if found is None:
            return None
        role = self.clients.role
        spent = max((role.spent(kept.state) for kept in self.clients.kept.values()), default=0.0)
        return privacy_record(spent, found[1])

    def _members(self, number: int) -> dict[str, list[int]] | None:
        """Return the clients of each group, in the first round and where they changed since the round before."""
        members = self.scenario.group_members(number, DETAILED)
        same = number > 0 and members == self.scenario.group_members(number - 1, DETAILED)
        return None if same else members

    def evaluate(self, state: SimulationState, batch: int = 512) -> tuple[list[int], list[int]]:
        """Return, for each task begun so far, the right predictions and the test images of its classes."""
        found = self.evaluate_fully(state, batch)
        return found.correct, found.total

    def evaluate_fully(self, state: SimulationState, batch: int = 512) -> ModelEvaluation:
        """Evaluate the model on the test images of the tasks begun so far."""
        net = self.server.machine.fixed_net(self.server.predictor(state.server))
        ids, catalogue = self.clients.samples.ids, state.server.catalogue.classes
        outputs = {name: output for output, name in enumerate(catalogue)}
        tasks = self.scenario.seen(max(state.round - 1, 0))  # a late class counts in the task during which it came
        classes = tuple(dict.fromkeys((*(ids[label] for task in tasks for label in task), *catalogue)))
        places = {name: place for place, name in enumerate(classes)}
        counts = torch.zeros(len(classes), len(classes), dtype=torch.int64)
        images = torch.zeros(len(classes), dtype=torch.int64)
        correct, total = [], []
        turned, scored = _Turned(self.attack, outputs), Scored(self.test.labels)
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
                scores = self._scores(net, self._tested, part)
                found = scores.argmax(1)
                scored.see(part, scores, wanted)
                right += int((found == wanted).sum())
                turned.see(self.test.images[part], wanted, lambda images: self._outputs_of(net, images))
                columns = torch.tensor([places[name] for name in catalogue])[found]
                counts.index_put_((rows, columns), torch.ones_like(rows), accumulate=True)
            correct.append(right)
            total.append(len(samples))
        calibration = None
        if outputs and state.round and self.scenario.ends_task(state.round - 1):
            seen = torch.tensor([label for task in tasks for label in task])
            strangers = (~torch.isin(self.test.labels, seen)).nonzero().squeeze(1)
            unknown = [self._scores(net, self._tested, part) for part in torch.split(strangers, batch) if len(part)]
            calibration = scored.calibration(unknown)
        return ModelEvaluation(classes, counts, images, correct, total, turned.found, calibration)

    def _scores(self, net: Classifier, samples: Samples, indices: Tensor) -> Tensor:
        return self.server.machine.logits(net, samples, indices).cpu()

    def _outputs_of(self, net: Classifier, images: Tensor) -> Tensor:
        """Return the outputs for images that are no test images."""
        everything = torch.arange(len(images))
        samples = Samples(Split(images, torch.zeros_like(everything)), self._tested.ids)
        return self._scores(net, samples, everything).argmax(1)

    @cached_property
    def _tested(self) -> Samples:
        """Return the test images as samples."""
        return Samples(self.test, self.clients.samples.ids)


class _Turned:
    """How many images of other classes a backdoor's trigger turns into its target, and how many there are."""

    def __init__(self, attack: Attack | None, outputs: Mapping[str, int]) -> None:
        self.attack = attack if outputs else None
        self.found: tuple[int, int] | None = None

    def see(self, images: Tensor, outputs: Tensor, predict: Callable[[Tensor], Tensor]) -> None:
        """Count some images of known outputs."""
        if self.attack is None or (patched := self.attack.triggered(images[outputs != TARGET])) is None:
            return
        turned, all_images = self.found or (0, 0)
        hits = int((predict(patched) == TARGET).sum()) if len(patched) else 0
        self.found = (turned + hits, all_images + len(patched))


def _by_client(measured: Mapping[int, Diagnostics]) -> dict[str, float]:
    """Return the entropy that each client measured, as far as it is a number, of clients with a low number."""
    known = {client: found.entropy for client, found in measured.items() if client < DETAILED}
    finite = {client: value for client, value in known.items() if value is not None and math.isfinite(value)}
    return {str(client): round(value, 4) for client, value in finite.items()}


def _finite_or_absent(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the finite values; JSON has no others, and `diverged` names the clients that had them."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None
