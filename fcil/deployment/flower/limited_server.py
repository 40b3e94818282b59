"""The HTTP server in front of the SuperLink: uvicorn with our own door, which counts connections before TLS."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import ssl
import sys
from contextlib import suppress
from typing import Any

from uvicorn.config import Config
from uvicorn.server import Server

from fcil.core.errors import reason
from fcil.deployment.flower.connection import LOG as CONNECTION_LOG
from fcil.deployment.flower.connection import Connection
from fcil.deployment.flower.connection_table import ConnectionTable
from fcil.deployment.flower.limits import LIMITS, ConnectionLimits

AT_ONCE = 64  # connections accepted before others get their turn
BACKLOG = 1024  # connections that wait to be accepted
FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PAUSE = 0.1  # seconds without accepting once there is no room


class LimitedServer(Server):
    """A uvicorn server that hangs up on strangers who take too long, too much or too many connections."""

    def __init__(self, application: Any, limits: ConnectionLimits = LIMITS, **options: Any) -> None:
        config = Config(
            application,
            http=Connection,
            ws="none",
            h11_max_incomplete_event_size=limits.header_bytes,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=2,
            **options,
        )
        super().__init__(config)
        CONNECTION_LOG.setLevel(logging.ERROR)  # strangers' bad requests cannot fill the log; uvicorn resets it above
        self.limits = limits
        self.table: ConnectionTable[Connection] = ConnectionTable(limits)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen at the configured address."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            self.should_exit = True
            return
        try:
            listening = sockets or _listening(self.config.host, self.config.port)
        except OSError as error:
            logging.getLogger("uvicorn.error").error(
                "%s:%d: nothing can listen there: %s", self.config.host, self.config.port, reason(error)
            )
            await self.lifespan.shutdown()
            sys.exit(1)
        if self.config.ssl is not None:  # our nodes speak TLS 1.3, and nothing is kept for sessions that come back
            self.config.ssl.minimum_version = ssl.TLSVersion.TLSv1_3
            self.config.ssl.num_tickets = 0
        self.servers = [Door(one, self) for one in listening]  # type: ignore[misc]  # all that uvicorn asks of them
        self._log_started_message(listening)
        self.started = True

    def reload_certificate(self) -> None:
        """Show new connections the certificate that the files have now; a pair that does not fit changes nothing."""
        config = self.config
        if config.ssl is None or config.ssl_certfile is None:
            return
        try:
            config.ssl.load_cert_chain(config.ssl_certfile, config.ssl_keyfile)
        except (OSError, ssl.SSLError) as error:
            logging.getLogger("uvicorn.error").error("the certificate is not read again: %s", reason(error))

    def connection(self, address: str) -> Connection:
        """Return the protocol of a new connection."""
        return Connection(self.config, self.server_state, self.lifespan.state, self.table, self.limits, address)


class Door:
    """A listening socket, with the methods of an `asyncio.Server` that uvicorn calls."""

    def __init__(self, listening: socket.socket, server: LimitedServer) -> None:
        self.sockets = (listening,)
        self._listening = listening
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._places = float(server.limits.newcomers_at_once)  # connections that may be accepted now
        self._counted = self._loop.time()
        self._open()

    def close(self) -> None:
        """Accept no further connections, and give up those within their handshake."""
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for task in self._opening:
            task.cancel()

    async def wait_closed(self) -> None:
        """Return once no handshake is under way."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _open(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        """Accept connections at a bounded pace, so that handshakes leave the processor to registered parties."""
        limits, now = self._server.limits, self._loop.time()
        grown = self._places + (now - self._counted) * limits.newcomers
        self._places, self._counted = min(float(limits.newcomers_at_once), grown), now
        for _ in range(min(AT_ONCE, int(self._places))):
            try:
                accepted, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in FULL:
                    raise
                for stranger in self._server.table.oldest_stranger():
                    stranger.hang_up()
                self._rest()
                return
            self._places -= 1
            self._admit(accepted, str(address[0]))
        if self._places < 1:
            self._rest()

    def _rest(self) -> None:
        """Accept again in a moment."""
        self._loop.remove_reader(self._listening)
        self._loop.call_later(PAUSE, self._open)

    def _admit(self, accepted: socket.socket, address: str) -> None:
        accepted.setblocking(False)
        connection = self._server.connection(address)
        task = self._loop.create_task(self._shake_hands(accepted, connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        connection.begin(task)

    async def _shake_hands(self, accepted: socket.socket, connection: Connection) -> None:
        """Connect the protocol with its socket, after TLS; what fails in between is forgotten."""
        limits, context = self._server.limits, self._server.config.ssl
        options: dict[str, Any] = {}
        if context is not None:
            options = {
                "ssl": context,
                "ssl_handshake_timeout": limits.handshake,
                "ssl_shutdown_timeout": limits.closing,
            }
        try:
            await self._loop.connect_accepted_socket(lambda: connection, accepted, **options)
        except BaseException as error:
            connection.forget()
            with suppress(OSError):
                accepted.close()
            if not isinstance(error, (OSError, ssl.SSLError, asyncio.CancelledError)):
                raise


def allow_files(wanted: int) -> None:
    """Let this process open as many files as wanted, or as many as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _listening(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address of a host."""
    found: list[socket.socket] = []
    try:
        known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, place in dict.fromkeys(known):
            found.append(socket.socket(family, socket.SOCK_STREAM))
            found[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                found[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            found[-1].bind(place)
            found[-1].listen(BACKLOG)
            found[-1].setblocking(False)
    except OSError:
        for one in found:
            one.close()
        raise
    return found
