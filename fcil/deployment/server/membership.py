"""The present parties of a served federation: connected, identified, and not silent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from fcil.core.errors import FederationError, StoppedError
from fcil.core.pulse import PULSE
from fcil.deployment.transport.base import ConnectedParty, Transport
from fcil.deployment.transport.messages import IdentifyRequest, Identity, Terms
from fcil.deployment.transport.model_exchange import ModelExchange
from fcil.experiment.config import OPEN, DeploymentConfig

PAUSE = 0.5  # seconds between two checks of the connected parties
IDENTIFY = 15.0  # seconds that a party has to identify itself


class Membership:
    """Names and roles of the parties; one that did not answer must identify itself again before it is counted."""

    def __init__(
        self,
        transport: Transport,
        exchange: ModelExchange,
        terms: Terms,
        config: DeploymentConfig,
        proxied: bool,
        warn: Callable[[str], None],
    ) -> None:
        self.transport = transport
        self.exchange = exchange
        self.terms = terms
        self.config = config
        self.proxied = proxied
        self.warn = warn
        self.names: dict[int, str] = {}
        self.roles: dict[int, str] = {}
        self.silent: set[int] = set()  # their last answer was late or invalid
        self.told: dict[int, bool] = {}  # whether a party knows itself to be in quarantine
        self.waits: Callable[[str], None] = lambda _: None  # told what a round waits for
        self.interrupted: Callable[[], bool] = lambda: False  # polled while waiting

    def present(self, role: str) -> list[int]:
        """Return the numbers of the connected parties with a role, ascending, without silent and quarantined ones."""
        members = self.transport.members()
        there = {member.number for member in members if not member.quarantined} - self.silent
        return sorted(number for number in there if self.roles.get(number) == role)

    def quarantined(self) -> set[int]:
        """Return the numbers of the connected parties that are left out of rounds."""
        return {member.number for member in self.transport.members() if member.quarantined}

    def wait_for_parties(self, number: int) -> None:
        """Wait until enough sites are connected, and the proxy if the method has one."""
        patience = math.inf if self.config.rounds == OPEN else self.config.patience
        until = time.monotonic() + patience
        told = False
        while True:
            self._identify(self.transport.members())
            absent = self.absent()
            if not absent:
                return
            sentence = f"round {number + 1} waits: {' and '.join(absent)} connected"
            if time.monotonic() >= until:
                raise FederationError(f"{sentence}; deployment.patience is over")
            if self.interrupted():
                raise StoppedError(f"interrupted while {sentence}; the same command with --resume continues")
            if not told:
                self.warn(sentence)
                told = True
            self.waits(sentence)
            PULSE.beat()
            time.sleep(PAUSE)

    def complete(self) -> bool:
        """Greet new parties, and return whether all are there that a round needs."""
        self._identify(self.transport.members())
        return not self.absent()

    def absent(self) -> list[str]:
        """Return the parties that a round still needs, in words."""
        sites, wanted = len(self.present("site")), self.config.min_sites
        absent = [] if sites >= wanted else [f"{sites} of {wanted} sites"]
        return [*absent, "no proxy"] if self.proxied and not self.present("proxy") else absent

    def _identify(self, members: list[ConnectedParty]) -> None:
        """Ask new and silent parties to identify themselves, and tell sites that a quarantine begins or ends."""
        fresh = {one.number: one for one in members if self._is_news(one)}
        if not fresh:
            return
        requests = {number: IdentifyRequest(self.terms, one.quarantined) for number, one in fresh.items()}
        deadline = min(IDENTIFY, self.config.deadline)
        for number, answer in self.exchange.ask(requests, lambda _: (), {}, Identity, "identify", deadline):
            member = fresh[number]
            if isinstance(answer, FederationError):
                if number not in self.silent:
                    self.warn(f"{member.name or 'a node'} is left out: {answer}")
                self.silent.add(number)
                self.roles.setdefault(number, member.role)
                self.names.setdefault(number, member.name)
                continue
            self.silent.discard(number)
            self.told[number] = member.quarantined
            self.names[number] = member.name or answer.name
            self.roles[number] = member.role or answer.role

    def _is_news(self, member: ConnectedParty) -> bool:
        """Return whether a party is new or was silent, or does not know yet whether it is in quarantine."""
        number = member.number
        known = self.told.get(number, False) == member.quarantined
        return number not in self.roles or number in self.silent or not known
