"""Interface of a transport: how requests reach the parties, and answers come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fcil.core.errors import FederationError

Handler = Callable[[bytes, Mapping[str, bytes]], bytes]  # a request and the models beside it -> the answer


@dataclass(frozen=True)
class Envelope:
    """An encoded request to one party, by its number, and the models beside it, by digest."""

    to: int
    content: bytes
    parcels: Mapping[str, bytes]


@dataclass(frozen=True)
class ConnectedParty:
    """A connected party: its permanent number, its name and its role."""

    number: int
    name: str
    role: str  # site or proxy; empty while it is not known
    quarantined: bool = False  # connected, and left out of rounds


class Transport(Protocol):
    """Sends requests to connected parties and returns their answers."""

    def members(self) -> list[ConnectedParty]:
        """Return the parties that are connected and registered now."""
        ...

    def exchange(
        self, envelopes: Sequence[Envelope], group: str, deadline: float, limit: int
    ) -> Iterator[tuple[int, bytes | FederationError]]:
        """Send requests and yield each party with its answer or an error, as they arrive.

        An answer of more than `limit` bytes is an error.
        """
        ...
