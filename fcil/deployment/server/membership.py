"""Who takes part in a served federation: who is connected, has said who it is, and answered when it was asked last."""

from __future__ import annotations

import time
from collections.abc import Callable

from fcil.core.errors import FederationError, StoppedError
from fcil.deployment.transport.base import Member, Transport
from fcil.deployment.transport.messages import IdentifyRequest, Identity, Terms
from fcil.deployment.transport.model_exchange import ModelExchange
from fcil.experiment.config import DeploymentConfig

PAUSE = 0.5  # seconds between two looks at who is connected
GREETING = 15.0  # seconds that a party has to answer a greeting


class Membership:
    """Names and roles of those who take part; who was silent is greeted again before it is counted on."""

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
        self.silent: set[int] = set()  # did not answer in time, or not as they should
        self.interrupted: Callable[[], bool] = lambda: False  # looked at while it waits

    def present(self, role: str) -> list[int]:
        """Return those with a role who are connected and can be counted on, ascending."""
        there = {member.number for member in self.transport.members()} - self.silent
        return sorted(number for number in there if self.roles.get(number) == role)

    def gather(self, number: int) -> None:
        """Wait until enough sites are connected, and the proxy where there is one."""
        until = time.monotonic() + self.config.patience
        told = False
        while True:
            self._greet(self.transport.members())
            lacking = self._lacking()
            if not lacking:
                return
            sentence = f"round {number + 1} waits: {' and '.join(lacking)} connected"
            if time.monotonic() >= until:
                raise FederationError(f"{sentence}; deployment.patience is over")
            if self.interrupted():
                raise StoppedError(f"interrupted while {sentence}; the same command with --resume continues")
            if not told:
                self.warn(sentence)
                told = True
            time.sleep(PAUSE)

    def _lacking(self) -> list[str]:
        """Return what is too little for a round, in words."""
        sites, wanted = len(self.present("site")), self.config.min_sites
        lacking = [] if sites >= wanted else [f"{sites} of {wanted} sites"]
        return [*lacking, "no proxy"] if self.proxied and not self.present("proxy") else lacking

    def _greet(self, members: list[Member]) -> None:
        """Ask those who they are who are new, or did not answer when they were asked last."""
        fresh = {one.number: one for one in members if one.number not in self.roles or one.number in self.silent}
        if not fresh:
            return
        requests = {number: IdentifyRequest(self.terms) for number in fresh}
        deadline = min(GREETING, self.config.deadline)
        for number, answer in self.exchange.ask(requests, lambda _: (), {}, Identity, "greeting", deadline):
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
