"""One connection to the server: how long it may last, and how much of it is read."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from fcil.deployment.flower.auth_middleware import STATE
from fcil.deployment.flower.connection_table import ConnectionTable
from fcil.deployment.flower.limits import ConnectionLimits

LOG = logging.getLogger("uvicorn.error.connection")


class Connection(H11Protocol):
    """An HTTP connection that is hung up unless its requests carry the signature of a registered party."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        table: ConnectionTable[Connection],
        limits: ConnectionLimits,
        address: str,
    ) -> None:
        super().__init__(config, server_state, {**app_state, STATE: self}, asyncio.get_running_loop())
        self.logger = LOG
        self.table = table
        self.limits = limits
        self.address = address
        self.node: int | None = None
        self.proven = False
        self._ignored: int | None = None  # bytes that came after a refusal
        self._owed = 0  # bytes of answers to a registered party since its last request
        self._opening: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, opening: asyncio.Task[None]) -> None:
        """Take the stranger's place in the table, and start its life; `opening` is the task that ends with TLS."""
        self._opening = opening
        self._end_in(self.limits.stranger_life)
        for other in self.table.enter(self, self.address):
            other.hang_up()

    def prove(self, node: int | None) -> None:
        """Take note that a request carries a valid signature of a node, or the owner's secret (None)."""
        self._stop_timer()
        self._owed = 0
        if self.proven:
            return
        self.proven, self.node = True, node
        for other in self.table.prove(self, self.address, node):
            other.hang_up()

    def owe(self, size: int) -> None:
        """Take note of bytes that a registered party has yet to fetch; it may do that slowly."""
        self._owed += size

    def refuse(self) -> None:
        """Take note that the request is refused: nothing that follows is looked at.

        A stranger's connection stays until the other side or its time ends it. A stranger that is hung up at once comes
        back at once, and a handshake costs the server more than an idle connection. A registered party is hung up after
        the answer, so that it does not wait to send the rest.
        """
        self._ignored = 0
        if not self.proven:
            self.cycle.transport = _Held(self.transport)  # type: ignore[assignment]  # all that it uses

    def data_received(self, data: bytes) -> None:
        if self._ignored is not None:
            self._ignored += len(data)
            if self._ignored > self.limits.header_bytes:
                self.transport.pause_reading()
            return
        # In pieces, since a header that comes whole in one large piece would pass the limit of h11.
        step = self.limits.header_bytes
        for start in range(0, len(data), step):
            if self.transport.is_closing():
                return
            super().data_received(data[start : start + step])
            if self.transport.is_closing():  # no HTTP, or a header over the limit
                self._part()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # uvicorn's ends with the next byte; ours with the next whole header
        if self.proven and self._ignored is not None:
            self._part()
        elif self.proven and self._timer is None:
            self._end_in(self.limits.idle + self._owed / self.limits.pace)

    def _part(self) -> None:
        """Read nothing more, not even the end of TLS, and hang up once the answer is on its way."""
        self.flow.pause_reading()
        self._end_in(self.limits.parting)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.forget()

    def forget(self) -> None:
        """Give up the place in the table and the timer."""
        self._stop_timer()
        self.table.leave(self, self.address, self.node)

    def hang_up(self) -> None:
        """End the connection at once, also during the handshake."""
        self.forget()
        if self.transport is not None:
            self.transport.abort()
        elif self._opening is not None:
            self._opening.cancel()

    def _end_in(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self.hang_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Held:
    """A transport as an answer sees it, which cannot close it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing

    def close(self) -> None:
        """Leave it open."""
