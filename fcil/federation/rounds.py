"""The federation's loop: a generator that yields, after every round, the state to keep and the record to write."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import ClassVar, Literal, Protocol

import torch
from pydantic import ConfigDict, Field
from torch import Tensor
from typing_extensions import TypedDict

from fcil.data.scenario import Scenario
from fcil.data.transforms import as_floats
from fcil.errors import FederationError
from fcil.federation.catalogue import Catalogue
from fcil.federation.traffic import Ledger, count
from fcil.local import Local
from fcil.methods.base import Roles
from fcil.methods.server import MOST_SAMPLES
from fcil.models import Classifier, initial_state
from fcil.section import Section
from fcil.wire import Broadcast, Failure, Message, ModelState, Moment, Order, Reply, derive_seed, model_digest


class FederationConfig(Section):
    """How the server runs a round."""

    averaging: Literal["uniform", "samples"] = Field(
        "uniform", description="weights of the participants' models: equal, or by their number of samples"
    )
    min_participants: int = Field(1, ge=1, description="the run stops when fewer participants answer")
    announce: Literal["start", "reply"] = Field(
        "start", description="start: the head grows before the round that brings new classes; reply: one round later"
    )
    monitor: Literal["all", "participants"] = Field(
        "all", description="which clients check their data for new classes in a round: all, or only those that train"
    )
    merge_rounds: int = Field(
        0, ge=0, description="classes that arrive within so many rounds after a block began belong to that block"
    )


class Engine(Protocol):
    """Runs a round's orders; replies may come in any order.

    The models in them are only lent: they may lie in memory that the next round uses again.
    """

    def run(self, broadcast: Broadcast, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        """Yield one answer an order."""
        ...

    def close(self) -> None:
        """Stop whoever works for it."""
        ...


@dataclass(frozen=True)
class FederationState(Message):
    """All that server, proxy and catalogue carry into the next round."""

    round: int
    model: ModelState
    catalogue: Catalogue
    server: Message
    proxy: Message | None
    waiting: tuple[int, ...] = ()  # ids announced with replies, for the next round
    ledger: Ledger = field(default_factory=Ledger)  # models each client has


class FailureRecord(TypedDict):
    """A `Failure` as it is written down."""

    client: int
    round: int
    stage: str
    reason: str


@dataclass(frozen=True)
class RoundRecord:
    """What is written down about a round; task, groups and arrivals are the scenario's truth."""

    __pydantic_config__: ClassVar = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)  # when it is read back

    round: int
    task: int
    classes: int
    clients: int
    groups: dict[str, int]
    participants: list[int]
    reports: int
    alarms: list[int]
    arrivals: list[int]
    entropy: float | None
    loss: float | None
    proxy: dict[str, float]
    bytes_up: int
    bytes_down: int
    failures: list[FailureRecord]
    seconds: float
    correct: list[int] = field(default_factory=list)  # right predictions a task, where the round was evaluated
    total: list[int] = field(default_factory=list)  # test images per task
    ends_task: bool = False
    diverged: list[int] = field(default_factory=list)  # participants whose loss was not finite


@dataclass(frozen=True)
class Federation:
    """Everything a run is made of, but its state."""

    roles: Roles
    scenario: Scenario
    engine: Engine
    local: Local
    config: FederationConfig
    seed: int

    def start(self) -> FederationState:
        """Return the state before the first round."""
        channels = self.local.source.image_shape[0]
        model = initial_state(self.local.model, channels, derive_seed(self.seed, "model"))
        proxy = self.roles.proxy.init() if self.roles.proxy else None
        return FederationState(0, model, Catalogue(), self.roles.server.init(), proxy)

    def rounds(self, state: FederationState) -> Iterator[tuple[FederationState, RoundRecord]]:
        """Yield the state and the record after each round, until the scenario ends."""
        while state.round < self.scenario.rounds:
            state, record = self._play(state)
            yield state, record

    def _play(self, state: FederationState) -> tuple[FederationState, RoundRecord]:
        began = time.perf_counter()
        number, clients = state.round, self.scenario.clients(state.round)
        participants = set(self.scenario.participants(number))
        asked = clients if self.config.monitor == "all" else sorted(participants)
        catalogue, server, model = self._grow(state)
        moment = catalogue.moment(number)
        broadcast = self._broadcast(model, server, state.proxy, moment)
        answers = list(self.engine.run(broadcast, self._orders(number, asked, participants)))
        replies, refused, failures = _sort_answers(answers, participants, model, number)
        answered = len(participants & {reply.client for reply in replies} - refused)
        if answered < self.config.min_participants:
            reasons = "; ".join(str(failure) for failure in failures) or f"{len(participants)} were asked"
            raise FederationError(
                f"round {number}: {answered} participants answered, federation.min_participants asks for "
                f"{self.config.min_participants} ({reasons})"
            )
        reports = [reply.report for reply in replies if reply.report is not None]
        server, averaged = self.roles.server.round(server, model, reports, moment)
        proxy = state.proxy
        if self.roles.proxy:
            uploads = [upload for reply in replies for upload in reply.uploads]
            seed = derive_seed(self.seed, "proxy", number)
            proxy = self.roles.proxy.round(proxy, uploads, model, averaged, moment, seed, self.local)
        arrived = [answer for answer in answers if isinstance(answer, Reply)]
        traffic = count(broadcast, participants, asked, arrived, state.ledger)
        known = range(self.local.source.classes)
        waiting = tuple(sorted({label for reply in replies for label in reply.announced if label in known}))
        following = FederationState(number + 1, averaged, catalogue, server, proxy, waiting, traffic.ledger)
        record = RoundRecord(
            round=number,
            task=self.scenario.task(number),
            classes=moment.classes,
            clients=len(clients),
            groups=self.scenario.group_sizes(number),
            participants=sorted(participants),
            reports=len(reports),
            alarms=[reply.client for reply in replies if reply.diagnostics.alarm],
            arrivals=self.scenario.arrivals(number),
            entropy=_mean([reply.diagnostics.entropy for reply in replies]),
            loss=_mean([reply.diagnostics.loss for reply in replies]),
            proxy=self.roles.proxy.measures(proxy) if self.roles.proxy else {},
            bytes_up=traffic.up,
            bytes_down=traffic.down,
            failures=[FailureRecord(**asdict(failure)) for failure in failures],  # type: ignore[typeddict-item]
            seconds=round(time.perf_counter() - began, 3),
            ends_task=self.scenario.ends_task(number),
            diverged=[reply.client for reply in replies if not _finite_or_absent(reply.diagnostics.loss)],
        )
        return following, record

    def _broadcast(self, model: ModelState, server: Message, proxy: Message | None, moment: Moment) -> Broadcast:
        """Return what clients receive: each model once, the extras' models named by digest."""
        server_extra, server_models = self.roles.server.extra(server, moment)
        proxy_extra, proxy_models = self.roles.proxy.extra(proxy, moment) if self.roles.proxy else (None, {})
        digest = model_digest(model)
        return Broadcast(moment, digest, {digest: model, **server_models, **proxy_models}, server_extra, proxy_extra)

    def _grow(self, state: FederationState) -> tuple[Catalogue, Message, ModelState]:
        """Return catalogue, server state and model once the announced classes have their outputs."""
        announced: set[int] = set(state.waiting)
        if self.config.announce == "start":
            announced |= self.scenario.classes_held(state.round)
        catalogue = state.catalogue.with_classes(announced, state.round, self.config.merge_rounds)
        if catalogue is state.catalogue:
            return catalogue, state.server, state.model
        new_block = len(catalogue.blocks) > len(state.catalogue.blocks)
        seed = derive_seed(self.seed, "head", len(catalogue.classes))
        server, model = self.roles.server.grow(state.server, state.model, len(catalogue.classes), new_block, seed)
        return catalogue, server, model

    def _orders(self, number: int, clients: list[int], participants: set[int]) -> list[Order]:
        truth = self.roles.client.wants_truth
        return [
            Order(
                client,
                derive_seed(self.seed, "client", number, client),
                client in participants,
                self.scenario.new_classes(number, client) if truth else None,
            )
            for client in clients
        ]

    def evaluate(self, state: FederationState, batch: int = 512) -> tuple[list[int], list[int]]:
        """Return, for each task begun so far, the right predictions and the test images of its classes."""
        net = self.local.net(self.roles.server.predictor(state.server, state.model))
        outputs = {label: output for output, label in enumerate(state.catalogue.classes)}
        test = self.local.source.test
        correct, total = [], []
        for task in self.scenario.tasks[: self.scenario.task(max(state.round - 1, 0)) + 1]:
            samples = torch.isin(test.labels, torch.tensor(task)).nonzero().squeeze(1)
            parts = torch.split(samples, batch)
            right = [self._right(net, test.labels[part], test.images[part], outputs) for part in parts]
            correct.append(sum(right))
            total.append(len(samples))
        return correct, total

    def _right(self, net: Classifier, labels: Tensor, images: Tensor, outputs: dict[int, int]) -> int:
        if not outputs:
            return 0
        wanted = torch.tensor([outputs.get(label, -1) for label in labels.tolist()])
        with torch.inference_mode():
            scores = net(as_floats(images.to(self.local.device)))
        return int((scores.argmax(1).cpu() == wanted).sum())


def _sort_answers(
    answers: list[Reply | Failure], participants: set[int], model: ModelState, number: int
) -> tuple[list[Reply], set[int], list[Failure]]:
    """Return one reply a client, whose update was refused, and all failures, by client.

    An unsound update is a failure; what it came with, but for its class ids and alarm, is dropped with it.
    """
    replies: dict[int, Reply] = {}
    refused: set[int] = set()
    failures = [answer for answer in answers if isinstance(answer, Failure)]
    for reply in sorted((a for a in answers if isinstance(a, Reply)), key=lambda reply: reply.client):
        if reply.client in replies:
            failures.append(Failure(reply.client, number, "update", f"client {reply.client} answered twice"))
            continue
        problem = _unsound(reply, participants, model)
        if problem:
            refused.add(reply.client)
            failures.append(Failure(reply.client, number, "update", problem))
        replies[reply.client] = replace(reply, report=None, uploads=()) if problem else reply
    return list(replies.values()), refused, sorted(failures, key=lambda failure: failure.client)


def _unsound(reply: Reply, participants: set[int], model: ModelState) -> str | None:
    """Say what is wrong with a client's update, if anything is."""
    if reply.report is None:
        return None
    if reply.client not in participants:
        return f"client {reply.client} was not asked to train"
    if not 1 <= reply.report.samples <= MOST_SAMPLES:
        return f"the update of client {reply.client} claims {reply.report.samples} samples"
    if len(reply.uploads) > len(model["head.weight"]):
        return f"client {reply.client} sent {len(reply.uploads)} uploads, more than there are classes"
    update = reply.report.model
    if update.keys() != model.keys():
        return f"the update of client {reply.client} has other parameters: {sorted(update.keys() ^ model.keys())}"
    return next(filter(None, (_unfit(reply.client, name, update[name], model[name]) for name in model)), None)


def _unfit(client: int, name: str, found: Tensor, wanted: Tensor) -> str | None:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return (
            f"the update of client {client} has {name} as {found.dtype} {tuple(found.shape)}, "
            f"the model {wanted.dtype} {tuple(wanted.shape)}"
        )
    if found.is_floating_point() and not _is_finite(found):
        return f"the update of client {client} is not finite in {name}; a lower train.learning_rate may help"
    return None


def _is_finite(tensor: Tensor) -> bool:
    """Say whether all values are finite; a finite sum, one pass without a copy, proves it."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def _finite_or_absent(value: float | None) -> bool:
    return value is None or math.isfinite(value)


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the finite values; JSON has no others, and `diverged` names who had them."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None
