"""Our HTTP server with limits of a test's own, in a thread, in front of an application that always says yes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message

from fcil.deployment.flower.auth_middleware import FLEET, AuthMiddleware, Receive, Scope, Send
from fcil.deployment.flower.limited_server import LimitedServer
from fcil.deployment.flower.limits import ConnectionLimits

PATIENCE = 30.0  # seconds for what should take less than one; no test asserts them
ANSWER = 1 << 10  # bytes of an answer, unless a path ends with their number


class Node:
    """A registered party, by its number and keys."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._private, public = generate_key_pairs()
        self.key = public_key_to_bytes(public)

    def headers(self, late: float = 0.0, stamp: str | None = None) -> dict[str, str]:
        """Return the headers of a request that was signed some seconds ago."""
        made = stamp or (datetime.now(UTC) - timedelta(seconds=late)).isoformat()
        signature = sign_message(self._private, made.encode())
        return {
            TIMESTAMP_HEADER: made,
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(self.key).decode(),
            FLEET_HTTP_SIGNATURE_HEADER: b64encode(signature).decode(),
        }


class Line:
    """A raw connection to the server from an address of this machine."""

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE, (source, 0))

    def send(self, content: bytes) -> None:
        with contextlib.suppress(ConnectionError):  # it is hung up
            self.socket.sendall(content)

    def request(
        self,
        path: str = f"{FLEET}pull-messages",
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        promised: int | None = None,
    ) -> None:
        """Send a request, whose headers may promise a longer body."""
        length = len(body) if promised is None else promised
        lines = [f"POST {path} HTTP/1.1", "host: test", f"content-length: {length}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.send("\r\n".join([*lines, "", ""]).encode() + body)

    def status(self) -> int:
        """Read one answer whole, and return its status; 0 if the server has hung up without one."""
        read = b""
        while b"\r\n\r\n" not in read:
            if not (piece := self._read()):
                return 0
            read += piece
        head, _, body = read.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        while len(body) < int(fields.get(b"content-length", b"0")):
            body += self._read()
        return int(head.split()[1])

    def hung_up(self) -> bool:
        """Wait until the server hangs up; what it says before is thrown away."""
        while self._read():
            pass
        return True

    @property
    def open(self) -> bool:
        """True if the server has neither answered nor hung up."""
        self.socket.setblocking(False)
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            self.socket.settimeout(PATIENCE)
        return False

    def _read(self) -> bytes:
        try:
            return self.socket.recv(1 << 16)
        except ConnectionError:
            return b""

    def close(self) -> None:
        self.socket.close()


@dataclass
class Served:
    """A server that is up, the parties that it knows, and lines to it."""

    server: LimitedServer
    port: int
    nodes: list[Node]
    lines: list[Line]

    def call(self, source: str = "127.0.0.1") -> Line:
        """Open a connection, and return once the server has counted it."""
        before = self.seen
        self.lines.append(Line(self.port, source))
        wait_for(lambda: self.seen > before)
        return self.lines[-1]

    @property
    def seen(self) -> int:
        """Return how many connections the server has taken so far."""
        return self.server.taken  # type: ignore[attr-defined,no-any-return]


class _Counting(LimitedServer):
    """A server that counts its connections."""

    taken = 0

    def connection(self, address: str) -> Any:
        made = super().connection(address)
        begin = made.begin

        def counted(opening: Any) -> None:
            begin(opening)
            self.taken += 1

        made.begin = counted  # type: ignore[method-assign]
        return made


async def _yes(scope: Scope, receive: Receive, send: Send) -> None:
    """Read a request whole, and answer it."""
    while (await receive()).get("more_body"):
        pass
    wanted = str(scope["path"]).rpartition("-")[2]
    body = bytes(int(wanted) if wanted.isdecimal() else ANSWER)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def served(
    limits: ConnectionLimits, loop: str = "asyncio", keys: Path | None = None, secret: str = "s"
) -> Iterator[Served]:
    """Give a server with these limits; with the keys of a server it speaks TLS."""
    nodes = [Node(1), Node(2)]
    numbers = {node.key: node.number for node in nodes}
    options = {"ssl_keyfile": str(keys / "server.key"), "ssl_certfile": str(keys / "server.crt")} if keys else {}
    application = AuthMiddleware(_yes, secret, numbers.get, limits=limits)
    server = _Counting(
        application, limits, host="127.0.0.1", port=0, loop=loop, lifespan="off", log_config=None, **options
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    made = Served(server, server.servers[0].sockets[0].getsockname()[1], nodes, [])
    try:
        yield made
    finally:
        for line in made.lines:
            line.close()
        server.should_exit = True
        thread.join(PATIENCE)


def wait_for(condition: Any) -> None:
    """Wait until something holds."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "it does not happen"
        time.sleep(0.01)
