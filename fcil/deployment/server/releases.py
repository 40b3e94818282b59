"""Releases of a served federation: frozen after a round, kept back if worse, and told to every site."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fcil.core.errors import FcilError, FederationError
from fcil.core.messages import ModelState, model_digest
from fcil.deployment.server.live_settings import LiveSettings, Schedule
from fcil.deployment.server.membership import Membership
from fcil.deployment.server.release_store import CurrentRelease, ReleaseEntry, ReleaseStore
from fcil.deployment.server.state import ServedState
from fcil.deployment.transport.messages import ReleaseHeld, ReleaseRequest, Retired, Terms
from fcil.deployment.transport.model_exchange import ModelExchange, PartyRefusedError
from fcil.experiment.config import DeploymentConfig
from fcil.experiment.model_file import stored_model
from fcil.federation.round_record import RoundRecord

Pack = Callable[[ServedState], tuple[ModelState, bytes]]  # the model that predicts, and its file
Note = Callable[..., object]  # takes an event and its facts


@dataclass(frozen=True)
class RunFiles:
    """The files of a run beside its checkpoint: releases, settings, schedule, and the operators' journal."""

    releases: ReleaseStore
    settings: LiveSettings
    schedule: Schedule
    pack: Pack
    note: Note


class Releases:
    """Freezes models after rounds, and brings the current one to the sites that lack it."""

    def __init__(
        self,
        files: RunFiles,
        terms: Terms,
        exchange: ModelExchange,
        membership: Membership,
        config: DeploymentConfig,
        warn: Callable[[str], None],
    ) -> None:
        self.store = files.releases
        self.pack = files.pack
        self.note = files.note
        self.terms = terms
        self.exchange = exchange
        self.membership = membership
        self.config = config
        self.warn = warn
        self.retired: Callable[[], Retired] = dict  # classes that were withdrawn or merged
        self.owed = False  # one could not be written
        self.told: dict[int, int] = {}  # by site: since when the release that it holds has been the current one
        self.complaints: set[str] = set()
        self.store.tidy()

    def answer_wish(self, round: int) -> None:
        """Tell an operator who asked for a release, while no round runs, that there is one already."""
        newest = self.store.newest if self.store.asked else None
        if newest is not None and newest.round == round:
            self.warn(f"{newest}, is of the newest round already")
            self.store.answered()

    def due(self, round: int) -> bool:
        """Return whether a model is to be frozen after a round, whether or not it ends a block."""
        every = self.config.release_every
        return self.owed or self.store.asked or (every > 0 and round > 0 and round % every == 0)

    def follow(self, state: ServedState, record: RoundRecord, records: str, ends_block: bool) -> None:
        """Freeze the model of a round that is on disk, if one is due, and bring the current release to the sites.

        What was asked for after the round's evaluation waits for the next one.
        """
        scheduled = self.config.release_every > 0 and state.round % self.config.release_every == 0
        if state.server.catalogue.classes and (ends_block or scheduled or (self.due(state.round) and record.per_class)):
            try:
                self._freeze(state, record, records)
                self.owed = False
            except FcilError as error:
                self.owed = True
                self._complain(f"no release after round {state.round}: {error}; it is tried again after the next round")
        self.deliver()

    def _freeze(self, state: ServedState, record: RoundRecord, records: str) -> None:
        newest, choice = self.store.newest, self.store.choice
        if newest is None or newest.round != state.round:
            newest = self._frozen(state, record, records, newest, choice)
        if not newest.kept_back and (choice is None or choice.since < newest.made):
            self.store.choose(newest.number)
        self.store.answered()
        self.store.drop_old()

    def _frozen(
        self,
        state: ServedState,
        record: RoundRecord,
        records: str,
        newest: ReleaseEntry | None,
        choice: CurrentRelease | None,
    ) -> ReleaseEntry:
        """Write the model of this state as the next release."""
        model, content = self.pack(state)
        entry = ReleaseEntry(
            number=newest.number + 1 if newest else 1,
            federation=self.terms.federation,
            round=state.round,
            model=model_digest(model),
            catalogue=state.server.catalogue.classes,
            records=records,
            previous=newest.digest if newest else "",
            made=max(int(time.time()), choice.since + 1 if choice else 0),
            per_class=dict(record.per_class),
        )
        reason = self._worse(entry, choice)
        entry = entry.model_copy(update={"kept_back": reason})
        self.note("kept back" if reason else "released", release=entry.number, digest=entry.digest, model=entry.model)
        self.store.add(entry, content)
        if reason:
            self.warn(f"{entry} is kept back: {reason}; `fcil federation rollback {entry.number}` releases it anyway")
        return entry

    def _worse(self, entry: ReleaseEntry, choice: CurrentRelease | None) -> str:
        """Return why a release is kept back: it is worse than the current one on the classes that both cover."""
        if choice is None:
            return ""
        current = self.store.entry(choice.number)
        both = set(current.per_class) & set(entry.per_class)
        before, now = current.accuracy_on(both), entry.accuracy_on(both)
        if before is None or now is None or before - now <= self.config.release_margin:
            return ""
        return (
            f"on the {len(both)} classes of release {current.number} its accuracy is {now:.1f} %, that of release "
            f"{current.number} {before:.1f} %, and deployment.release_margin is {self.config.release_margin:g}"
        )

    def deliver(self) -> None:
        """Bring the current release to the connected sites that lack it; one that is away gets it when it returns."""
        try:
            choice = self.store.choice
            sites = self._lacking(choice)
            if choice is not None and sites:
                self._deliver(choice, sites)
        except FcilError as error:
            self._complain(f"releases are not sent: {error}")

    def _lacking(self, choice: CurrentRelease | None) -> list[int]:
        since = choice.since if choice else 0
        present = self.membership.present("site")
        return [one for one in present if self.told.get(one, 0) < since and self.exchange.knows(one, ReleaseRequest)]

    def _deliver(self, choice: CurrentRelease, sites: list[int]) -> None:
        entry = self.store.entry(choice.number)
        model = stored_model(self.store.model_file(choice.number))
        if model_digest(model) != entry.model:
            raise FederationError(f"the model of release {entry.number} is not the one that its entry names")
        request = ReleaseRequest(self.terms, entry.message(), choice.since, self.retired())
        answers = self.exchange.ask(
            dict.fromkeys(sites, request),
            lambda _: (entry.model,),
            {entry.model: model},
            ReleaseHeld,
            f"release {entry.number}",
            self.config.deadline,
        )
        for site, answer in answers:
            self._heard(site, answer, choice)

    def _heard(self, site: int, answer: Any, choice: CurrentRelease) -> None:
        name = self.membership.names[site]
        if isinstance(answer, FederationError):
            if not isinstance(answer, PartyRefusedError):
                self.membership.silent.add(site)
            self._complain(f"site {name} does not take release {choice.number}: {answer}")
            return
        self.told[site] = max(answer.since, choice.since)
        if answer.since > choice.since:
            self._complain(
                f"site {name} keeps a release that was made the current one after release {choice.number}; if this "
                f"server was restored, `fcil federation rollback {choice.number}` sends it again"
            )

    def _complain(self, sentence: str) -> None:
        """Warn once of a problem that each round would repeat."""
        if sentence not in self.complaints:
            self.complaints.add(sentence)
            self.warn(sentence)
