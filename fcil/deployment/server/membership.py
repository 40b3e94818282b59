"""Parties of a served federation: those that are connected, identified and answered their last request."""

from __future__ import annotations

import time
from collections.abc import Callable

from fcil.core.errors import FederationError, StoppedError
from fcil.deployment.transport.base import Member, Transport
from fcil.deployment.transport.messages import IdentifyRequest, Identity, Terms
from fcil.deployment.transport.model_exchange import ModelExchange
from fcil.experiment.config import DeploymentConfig

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
        self.interrupted: Callable[[], bool] = lambda: False  # polled while waiting

    def present(self, role: str) -> list[int]:
        """Return the numbers of the connected parties with a role, ascending, without the silent ones."""
        there = {member.number for member in self.transport.members()} - self.silent
        return sorted(number for number in there if self.roles.get(number) == role)

    def wait_for_parties(self, number: int) -> None:
        """Wait until enough sites are connected, and the proxy if the method has one."""
        until = time.monotonic() + self.config.patience
        told = False
        while True:
            self._identify(self.transport.members())
            absent = self._absent()
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
            time.sleep(PAUSE)

    def _absent(self) -> list[str]:
        """Return the parties that a round still needs, in words."""
        sites, wanted = len(self.present("site")), self.config.min_sites
        absent = [] if sites >= wanted else [f"{sites} of {wanted} sites"]
        return [*absent, "no proxy"] if self.proxied and not self.present("proxy") else absent

    def _identify(self, members: list[Member]) -> None:
        """Ask new and silent parties to identify themselves."""
        fresh = {one.number: one for one in members if one.number not in self.roles or one.number in self.silent}
        if not fresh:
            return
        requests = {number: IdentifyRequest(self.terms) for number in fresh}
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
            self.names[number] = member.name or answer.name
            self.roles[number] = member.role or answer.role
