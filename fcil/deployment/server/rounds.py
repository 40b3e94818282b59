"""The rounds of a real federation with the parties that are connected."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from fcil.core.errors import FederationError, one_line
from fcil.core.messages import Failure, ModelState, Reply, model_digest
from fcil.core.stopwatch import Stopwatch
from fcil.deployment.server.evaluation import Evaluator
from fcil.deployment.server.idle import Idling
from fcil.deployment.server.live_status import LiveStatus
from fcil.deployment.server.masked_turns import MaskedRound, MaskedTurns
from fcil.deployment.server.membership import Membership
from fcil.deployment.server.releases import Releases, RunFiles
from fcil.deployment.server.state import ServedState
from fcil.deployment.signed_teachers import read_choice
from fcil.deployment.transport.base import Transport
from fcil.deployment.transport.messages import (
    Ended,
    EndRequest,
    ProxyRequest,
    ProxyResult,
    Retired,
    Sealed,
    SignedChoice,
    Terms,
    TrainRequest,
    TrainResult,
)
from fcil.deployment.transport.model_exchange import ModelExchange, PartyRefusedError, PartyTraffic
from fcil.experiment.config import DeploymentConfig
from fcil.experiment.party_status import now
from fcil.federation.class_catalogue import in_order, is_class_id
from fcil.federation.masking.messages import least_in_sum
from fcil.federation.replies import REFUSAL
from fcil.federation.reply_checks import mixing
from fcil.federation.round_record import (
    DETAILED,
    RoundRecord,
    SiteRecord,
    exclusions,
    failure_record,
    privacy_record,
)
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
        live: LiveStatus,
        files: RunFiles,
    ) -> None:
        self.live = live
        self.server = server
        self.terms = terms
        self.proxied = proxied
        self.transport = transport
        self.exchange = ModelExchange(transport)
        self.config = config
        self.warn = warn
        self.membership = Membership(transport, self.exchange, terms, config, proxied, warn)
        self.membership.waits = lambda sentence: live.phase(sentence, ready=False)
        self.evaluator = Evaluator(server, terms, self.exchange, self.membership, config, warn, files.schedule)
        self.idling = Idling(files.schedule, files.settings, terms, self.exchange, self.membership, warn)
        self.releases = Releases(files, terms, self.exchange, self.membership, config, warn)
        least = least_in_sum(server.config.min_participants)
        masked = MaskedTurns(terms, least, self.exchange, self.membership, config.deadline)
        self.masked = masked if server.aggregator.hides else None
        self.watch = Stopwatch()
        self.retired: Callable[[], Retired] = dict  # classes that were withdrawn or merged, read before each round
        self.reload: Callable[[], None] = lambda: None  # lets new connections see a new certificate
        self.certificates: dict[str, Path] = {}
        self.written: list[int] = []  # the sites in the last record
        self.weights: dict[str, tuple[int, int]] = {}  # bytes up and down by phase since the last record

    def rounds(self, state: ServedState, measured: set[int]) -> Iterator[tuple[ServedState, RoundRecord]]:
        """Yield the state and the record after each round; `measured` names the blocks that have an accuracy."""
        while self.idling.goes_on(state, lambda *phase: self._meanwhile(state, *phase)):  # noqa: B023 (called at once)
            self._adopt(self.idling.settings.now)
            began = now()
            state, record = self._attempts(state)
            if self.evaluator.due(state, self.releases.due(state.round)):
                with self.watch.phase("evaluate"):
                    state, record = self.evaluator.evaluate(state, record, measured, self.retired())
                self._weigh("evaluate")
                record = self._weighed(record)
            answers = self.exchange.drain_parties()
            self.live.round(record.round, answers)
            sites = {str(site): _site_record(found) for site, found in sorted(answers.items()) if site < DETAILED}
            yield state, replace(record, began=began, ended=now(), sites=sites)

    def _meanwhile(self, state: ServedState, phase: str, ready: bool) -> None:
        """Keep the sites' releases up to date between two rounds."""
        self.live.phase(phase, ready)
        self.releases.answer_wish(state.round)
        self.releases.deliver()

    def _adopt(self, config: DeploymentConfig) -> None:
        """Go on under these settings."""
        for part in (self, self.membership, self.evaluator, self.releases):
            part.config = config

    def release(self, state: ServedState, record: RoundRecord, records: str) -> None:
        """Release the model of a round that is on disk, if it is due, and send the current release to sites without."""
        self.releases.follow(state, record, records, self.evaluator.ends_block(state))
        if self.exchange.up or self.exchange.down:
            self._weigh("release")  # in the next record

    def _attempts(self, state: ServedState) -> tuple[ServedState, RoundRecord]:
        """Run a round, and repeat it if it fails; sites give a repeated round the same answer."""
        for attempt in range(1, self.config.attempts + 1):
            self.membership.wait_for_parties(state.round)  # raises once deployment.patience is over
            self.live.phase(f"round {state.round + 1}", ready=True)
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
        grown = server.grow(state.server, ())
        signed = _choice_for(state, len(grown.catalogue.blocks))
        choice = _as_choice(signed, state) if self.proxied else None
        opened = server.open(grown, choice)
        keys = self._keys(opened, participants)
        participants = keys.participants if keys else participants
        asked = sites if server.config.monitor == "all" else participants
        asked = [site for site in asked if site not in self.membership.silent]
        orders, retired = server.orders(asked, participants), self.retired()
        requests = {
            order.client: TrainRequest(
                self.terms,
                opened.broadcast if order.participate else opened.broadcast.for_bystanders(),
                order,
                signed if order.participate else None,  # a bystander has no teachers
                keys.partners(order.client) if keys else None,
                retired,
            )
            for order in orders
        }
        notices: list[tuple[int, Sealed]] = []  # and the site of each
        replies = server.expect(opened, orders)
        try:
            for reply in self.watch.each("train", self._answers(requests, opened, notices)):
                with self.watch.phase("aggregate"):
                    replies.add(reply)
            if self.masked and keys:
                with self.watch.phase("masks"):
                    self.masked.end(keys, replies)
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

    def _keys(self, opened: Opened, participants: list[int]) -> MaskedRound | None:
        """Return a masked round with its keys and shares; None where reports are not masked."""
        if self.masked is None:
            return None
        with self.watch.phase("masks"):
            return self.masked.begin(opened, participants)

    def _answers(
        self, requests: dict[int, TrainRequest], opened: Opened, notices: list[tuple[int, Sealed]]
    ) -> Iterator[Reply | Failure]:
        """Yield the replies and failures of the sites, and collect the boxes for the proxy."""
        number = opened.state.round

        def wanted(site: int) -> tuple[str, ...]:
            return requests[site].broadcast.digests(requests[site].order.participate)

        found = self.exchange.ask(requests, wanted, opened.models, TrainResult, str(number + 1), self.config.deadline)
        for site, answer in found:
            name = self.membership.names[site]
            if site in self.membership.quarantined():
                yield Failure(site, number, "quarantine", f"site {name}: it is in quarantine; its answer is not used")
                continue
            if isinstance(answer, FederationError):
                self.membership.silent.add(site)
                stage = REFUSAL if isinstance(answer, PartyRefusedError) else "answer"
                yield Failure(site, number, stage, f"site {name}: {answer}")
                continue
            if answer.sealed is not None:
                notices.append((site, answer.sealed))
            if answer.failure is not None:
                stage, reason = one_line(answer.failure.stage), one_line(answer.failure.reason)  # untrusted text
                yield Failure(site, number, stage, f"site {name}: {reason}")
            elif answer.reply is None:
                yield Failure(
                    site, number, "answer", f"site {name}: it answers neither with a reply nor with a failure"
                )
            elif self.proxied and not all(isinstance(upload, Sealed) for upload in answer.reply.uploads):
                yield Failure(site, number, "answer", f"site {name}: it sends uploads that are not sealed")
            else:
                report = answer.reply.report
                self.exchange.parties[site].samples = report.samples if report is not None else 0
                yield replace(answer.reply, client=site)

    def _named(self, failure: Failure) -> Failure:
        """Return a failure with the name of its site."""
        name = f"site {self.membership.names.get(failure.client, '?')}"
        return failure if failure.reason.startswith(name) else replace(failure, reason=f"{name}: {failure.reason}")

    def _legend(self, sites: list[int]) -> str:
        return ", ".join(f"client {site} is site {self.membership.names[site]}" for site in sites)

    # --- the proxy ------------------------------------------------------------------------------------------------

    def _consult(
        self, state: ServedState, opened: Opened, closed: Closed, notices: list[tuple[int, Sealed]]
    ) -> tuple[ServedState, dict[str, float]]:
        """Send the round to the proxy, and return the next state with its choices, and its measures."""
        sent, averaged = opened.broadcast.model, model_digest(closed.state.model)
        models: dict[str, ModelState] = {sent: opened.state.model, averaged: closed.state.model}
        uploads = tuple(upload for upload in closed.uploads if isinstance(upload, Sealed))
        notices.sort(key=lambda notice: mixing(notice[1]))  # by random content, so the order does not show the senders
        boxes, admission = tuple(box for _, box in notices), self.server.admission(closed.state, closed.state.round)
        allowed = tuple(admission.allowed(site) for site, _ in notices)
        known = tuple(state.candidates)
        call = ProxyRequest(self.terms, opened.state.context, sent, averaged, uploads, boxes, allowed, known)
        proxy = next(iter(self.membership.present("proxy")), None)
        if proxy is None:
            raise FederationError("the proxy is not connected")
        group = str(opened.state.round + 1)
        wanted, deadline = (sent, averaged), self.config.deadline
        ((_, answer),) = self.exchange.ask({proxy: call}, lambda _: wanted, models, ProxyResult, group, deadline)
        if isinstance(answer, FederationError):
            self.membership.silent.add(proxy)
            raise FederationError(f"the proxy: {answer}")
        kept = {**state.candidates, **models}
        choices = [read_choice(choice) for choice in answer.choices]
        named = {digest for choice in choices for digest in choice.teachers.digests}
        if not named <= kept.keys():
            raise FederationError("the proxy names teachers that the server does not have")
        # The proxy checks announcements one by one; all together may exceed the limits of one
        ids = in_order({*closed.state.waiting, *filter(is_class_id, answer.announced)})
        for (site, _), classes in zip(notices, answer.brought, strict=False):
            excess = admission.count(site, classes)
            if excess:
                closed.failures.append(self._named(Failure(site, opened.state.round, "announce", excess)))
        server = replace(closed.state, waiting=tuple(ids), ledger=admission.ledger)
        candidates = {digest: kept[digest] for digest in sorted(named)}
        measures = {key: value for key, value in answer.measures.items() if math.isfinite(value)}
        return ServedState(server, answer.choices, candidates), measures

    def dismiss(self) -> None:
        """Tell all parties that the federation has ended."""
        requests = {one.number: EndRequest(self.terms) for one in self.transport.members()}
        for _ in self.exchange.ask(requests, lambda _: (), {}, Ended, "end", END):
            pass  # a party that misses it sees the server disconnect

    def _weigh(self, phase: str) -> None:
        """Add the bytes since the last call to a phase, failed attempts included."""
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
        guarantee = self.server.role.guarantee(closed.state.role_state)
        return RoundRecord(
            round=context.round + 1,
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
            failures=[failure_record(failure) for failure in closed.failures],
            seconds=seconds,
            model=opened.broadcast.model,
            teachers=opened.broadcast.teachers.named,
            members=members,
            excluded=exclusions(closed.excluded),
            not_applied=closed.not_applied,
            clipped=closed.clipped,
            privacy=privacy_record(*guarantee) if guarantee else None,
        )


def _site_record(found: PartyTraffic) -> SiteRecord:
    return SiteRecord(seconds=round(found.seconds, 3), samples=found.samples or 0, up=found.up, down=found.down)


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
