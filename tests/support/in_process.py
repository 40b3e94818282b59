"""In-process transport between a server and its parties."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fcil.core.errors import FederationError
from fcil.deployment.transport.base import ConnectedParty, Envelope, Handler


class InProcessTransport:
    """A transport within this process, which hands requests to their parties one after the other."""

    def __init__(self, parties: Mapping[int, tuple[ConnectedParty, Handler]]) -> None:
        self.parties = dict(parties)

    def members(self) -> list[ConnectedParty]:
        return [member for member, _ in self.parties.values()]

    def exchange(
        self, envelopes: Sequence[Envelope], group: str, deadline: float, limit: int
    ) -> Iterator[tuple[int, bytes | FederationError]]:
        for envelope in envelopes:
            _, handler = self.parties[envelope.to]
            yield envelope.to, handler(envelope.content, envelope.parcels)
