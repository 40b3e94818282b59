"""How requests reach the other parties, whoever carries them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fcil.core.errors import FederationError

Handler = Callable[[bytes, Mapping[str, bytes]], bytes]  # a request and its parcels -> the answer


@dataclass(frozen=True)
class Envelope:
    """A request for one party, by its number, and the models that go with it, by digest."""

    to: int
    content: bytes
    parcels: Mapping[str, bytes]


@dataclass(frozen=True)
class Member:
    """A party that is connected: its number for good, its name, and whether it is the proxy."""

    number: int
    name: str
    role: str  # site or proxy; empty while nobody knows


class Transport(Protocol):
    """Carries requests between the server and the parties that are connected."""

    def members(self) -> list[Member]:
        """Return who is connected and registered now."""
        ...

    def exchange(
        self, envelopes: Sequence[Envelope], group: str, deadline: float, limit: int
    ) -> Iterator[tuple[int, bytes | FederationError]]:
        """Send requests and yield each party with its answer, or with what went wrong, as it comes.

        An answer of more than `limit` bytes is not worth the memory that it takes.
        """
        ...


class InProcessTransport:
    """Carries requests within this process, one after the other: for tests, and to show that the carrier is no part."""

    def __init__(self, parties: Mapping[int, tuple[Member, Handler]]) -> None:
        self.parties = dict(parties)

    def members(self) -> list[Member]:
        return [member for member, _ in self.parties.values()]

    def exchange(
        self, envelopes: Sequence[Envelope], group: str, deadline: float, limit: int
    ) -> Iterator[tuple[int, bytes | FederationError]]:
        for envelope in envelopes:
            _, handler = self.parties[envelope.to]
            yield envelope.to, handler(envelope.content, envelope.parcels)
