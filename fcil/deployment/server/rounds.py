"""The rounds of a real federation with the parties that are connected."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

from fcil.core.errors import FederationError, one_line
from fcil.core.messages import Failure, ModelState, Reply, model_digest
from fcil.deployment.server.evaluation import Evaluator
from fcil.deployment.server.membership import Membership
from fcil.deployment.server.state import ServedState
from fcil.deployment.signed_teachers import read_choice
from fcil.deployment.transport.base import Transport
from fcil.deployment.transport.messages import (
    Ended,
    EndRequest,
    ProxyRequest,
    ProxyResult,
    Sealed,
    SignedChoice,
    Terms,
    TrainRequest,
    TrainResult,
)
from fcil.deployment.transport.model_exchange import ModelExchange
from fcil.experiment.config import DeploymentConfig
from fcil.federation.class_catalogue import in_order, is_class_id
from fcil.federation.diagnostics import Stopwatch
from fcil.federation.reply_checks import mixing
from fcil.federation.round_record import DETAILED, FailureRecord, RoundRecord
from fcil.federation.server import Closed, Opened, Server
from fcil.methods.base import Choice

END = 15.0  # seconds that a party has to confirm the end


class ServerRunner:
    """Runs rounds over a transport and relays sealed boxes to the proxy without opening them."""

    def __init__(
        self,
        server: Server,
        terms: Terms,
        proxied: bool,
        transport: Transport,
        config: DeploymentConfig,
        warn: Callable[[str], None],
    ) -> None:
        self.server = server
        self.terms = terms
        self.proxied = proxied
        self.transport = transport
        self.exchange = ModelExchange(transport)
        self.config = config
        self.warn = warn
        self.membership = Membership(transport, self.exchange, terms, config, proxied, warn)
        self.evaluator = Evaluator(server, terms, self.exchange, self.membership, config, warn)
        self.watch = Stopwatch()
        self.written: list[int] = []  # the sites in the last record
        self.weights: dict[str, tuple[int, int]] = {}  # bytes up and down by phase since the last record

    def rounds(self, state: ServedState, measured: set[int]) -> Iterator[tuple[ServedState, RoundRecord]]:
        """Yield the state and the record after each round; `measured` names the blocks that have an accuracy."""
        while state.round < self.config.rounds:
            state, record = self._attempts(state)
            if self.evaluator.due(state):
                with self.watch.phase("evaluate"):
                    record = self.evaluator.evaluate(state, record, measured)
                self._weigh("evaluate")
                record = self._weighed(record)
            yield state, record

    def _attempts(self, state: ServedState) -> tuple[ServedState, RoundRecord]:
        """Run a round, and repeat it if it fails; sites give a repeated round the same answer."""
        for attempt in range(1, self.config.attempts + 1):
            self.membership.wait_for_parties(state.round)  # raises once deployment.patience is over
            try:
                return self._round(state)
            except FederationError as error:
                if attempt == self.config.attempts:
                    raise
                why = str(error).removeprefix(f"round {state.round + 1}: ")
                self.warn(f"round {state.round + 1} is tried again: {why}")
        raise AssertionError("unreachable")

    def _round(self, state: ServedState) -> tuple[ServedState, RoundRecord]:
        began, number, sites = time.perf_counter(), state.round, self.membership.present("site")
        server = self.server
        participants = server.choose(number, sites)
        asked = sites if server.config.monitor == "all" else participants
        grown = server.grow(state.server, ())
        signed = _choice_for(state, len(grown.catalogue.blocks))
        choice = _as_choice(signed, state) if self.proxied else None
        opened = server.open(grown, choice)
        orders = server.orders(asked, participants)
        requests = {
            order.client: TrainRequest(
                self.terms,
                opened.broadcast if order.participate else opened.broadcast.for_bystanders(),
                order,
                signed if order.participate else None,  # a bystander has no teachers
            )
            for order in orders
        }
        notices: list[Sealed] = []
        replies = server.expect(opened, orders)
        try:
            for reply in self.watch.each("train", self._answers(requests, opened, notices)):
                with self.watch.phase("aggregate"):
                    replies.add(reply)
            with self.watch.phase("aggregate"):
                closed = server.aggregate(opened, replies)
        except FederationError as error:
            raise FederationError(f"{error}; {self._legend(asked)}") from error
        closed.failures = [self._named(failure) for failure in closed.failures]
        self._weigh("train")
        following, measures = ServedState(closed.state), dict[str, float]()
        if self.proxied:
            with self.watch.phase("proxy"):
                following, measures = self._consult(state, opened, closed, notices)
            self._weigh("proxy")
        seconds = round(time.perf_counter() - began, 3)
        return following, self._weighed(self._record(opened, sites, participants, closed, measures, seconds))

    def _answers(
        self, requests: dict[int, TrainRequest], opened: Opened, notices: list[Sealed]
    ) -> Iterator[Reply | Failure]:
        """Yield the replies and failures of the sites, and collect the boxes for the proxy."""
        number = opened.state.round

        def wanted(site: int) -> tuple[str, ...]:
            return requests[site].broadcast.digests(requests[site].order.participate)

        found = self.exchange.ask(requests, wanted, opened.models, TrainResult, str(number + 1), self.config.deadline)
        for site, answer in found:
            name = self.membership.names[site]
            if isinstance(answer, FederationError):
                self.membership.silent.add(site)
                yield Failure(site, number, "answer", f"site {name}: {answer}")
                continue
            if answer.sealed is not None:
                notices.append(answer.sealed)
            if answer.failure is not None:
                stage, reason = one_line(answer.failure.stage), one_line(answer.failure.reason)  # untrusted text
                yield Failure(site, number, stage, f"site {name}: {reason}")
            elif answer.reply is None:
                yield Failure(site, number, "answer", f"site {name} answers neither with a reply nor with a failure")
            elif self.proxied and not all(isinstance(upload, Sealed) for upload in answer.reply.uploads):
                yield Failure(site, number, "answer", f"site {name} sends uploads that are not sealed")
            else:
                yield replace(answer.reply, client=site)

    def _named(self, failure: Failure) -> Failure:
        """Return a failure with the name of its site."""
        name = f"site {self.membership.names.get(failure.client, '?')}"
        return failure if failure.reason.startswith(name) else replace(failure, reason=f"{name}: {failure.reason}")

    def _legend(self, sites: list[int]) -> str:
        return ", ".join(f"client {site} is site {self.membership.names[site]}" for site in sites)

    # --- the proxy ------------------------------------------------------------------------------------------------

    def _consult(
        self, state: ServedState, opened: Opened, closed: Closed, notices: list[Sealed]
    ) -> tuple[ServedState, dict[str, float]]:
        """Send the round to the proxy, and return the next state with its choices, and its measures."""
        sent, averaged = opened.broadcast.model, model_digest(closed.state.model)
        models: dict[str, ModelState] = {sent: opened.state.model, averaged: closed.state.model}
        uploads = tuple(upload for upload in closed.uploads if isinstance(upload, Sealed))
        notices.sort(key=mixing)  # by their random content, so the order does not show the senders
        call = ProxyRequest(self.terms, opened.state.context, sent, averaged, uploads, tuple(notices))
        proxy = next(iter(self.membership.present("proxy")), None)
        if proxy is None:
            raise FederationError("the proxy is not connected")
        group = str(opened.state.round + 1)
        wanted, deadline = (sent, averaged), self.config.deadline
        ((_, answer),) = self.exchange.ask({proxy: call}, lambda _: wanted, models, ProxyResult, group, deadline)
        if isinstance(answer, FederationError):
            self.membership.silent.add(proxy)
            raise FederationError(f"the proxy: {answer}")
        known = {**state.candidates, **models}
        choices = [read_choice(choice) for choice in answer.choices]
        named = {digest for choice in choices for digest in choice.teachers.digests}
        if not named <= known.keys():
            raise FederationError("the proxy names teachers that the server does not have")
        # The proxy checks announcements one by one; all together may exceed the limits of one
        ids = in_order({*closed.state.waiting, *filter(is_class_id, answer.announced)})
        server = replace(closed.state, waiting=tuple(ids))
        candidates = {digest: known[digest] for digest in sorted(named)}
        measures = {key: value for key, value in answer.measures.items() if math.isfinite(value)}
        return ServedState(server, answer.choices, candidates), measures

    def dismiss(self) -> None:
        """Tell all parties that the federation has ended."""
        requests = {one.number: EndRequest(self.terms) for one in self.transport.members()}
        for _ in self.exchange.ask(requests, lambda _: (), {}, Ended, "end", END):
            pass  # a party that misses it sees the server disconnect

    def _weigh(self, phase: str) -> None:
        """Add the bytes since the last call to a phase, those of failed attempts too."""
        former = self.weights.get(phase, (0, 0))
        up, down = self.exchange.drain_traffic()
        self.weights[phase] = (former[0] + up, former[1] + down)

    def _weighed(self, record: RoundRecord) -> RoundRecord:
        """Return a record with the bytes since the last one."""
        found, self.weights = self.weights, {}
        return replace(
            record,
            bytes_up=record.bytes_up + sum(up for up, _ in found.values()),
            bytes_down=record.bytes_down + sum(down for _, down in found.values()),
            traffic={**record.traffic, **found},
        )

    def _record(
        self,
        opened: Opened,
        sites: list[int],
        participants: list[int],
        closed: Closed,
        measures: dict[str, float],
        seconds: float,
    ) -> RoundRecord:
        context, known = opened.state.context, sites[:DETAILED]
        members = None if known == self.written else {"site": known}
        self.written = known
        return RoundRecord(
            round=context.round,
            task=max(len(context.blocks) - 1, 0),
            classes=context.classes,
            clients=len(sites),
            groups={},
            participants=participants,
            reports=closed.reports,
            alarms=[],
            arrivals=[],
            entropy=None,
            loss=None,
            proxy=measures,
            bytes_up=0,
            bytes_down=0,
            failures=[FailureRecord(**asdict(failure)) for failure in closed.failures],  # type: ignore[typeddict-item]
            seconds=seconds,
            model=opened.broadcast.model,
            teachers=opened.broadcast.teachers.named,
            members=members,
        )


def _choice_for(state: ServedState, blocks: int) -> SignedChoice | None:
    """Return the proxy's choice for a head with `blocks` blocks."""
    if not state.choices:
        return None
    for choice in state.choices:
        if read_choice(choice).blocks == blocks:
            return choice
    raise FederationError(f"the proxy has made no choice for {blocks} blocks")


def _as_choice(signed: SignedChoice | None, state: ServedState) -> Choice:
    """Return a signed choice with the models that it names."""
    if signed is None:
        return Choice()
    teachers = read_choice(signed).teachers
    return Choice(teachers, {digest: state.candidates[digest] for digest in teachers.digests})
