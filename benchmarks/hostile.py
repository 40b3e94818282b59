"""Strangers that keep connections to a server open: `python -m benchmarks.hostile OWNER HOST:PORT COUNT`.

A quarter each stays idle after TLS, sends a header byte by byte, sends a body byte by byte, and stops within the
handshake. A connection that the server closes is opened again after a pause. Only for servers on this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

from fcil.core.net import is_loopback, split_address
from fcil.core.parent_watch import leave_with

PAUSE = 1.0  # seconds before a closed connection is opened again
DRIP = 0.5  # seconds between two bytes
HEADER = b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: federation\r\n"
HELLO = bytes.fromhex("16030102000100")  # the beginning of a ClientHello of 512 bytes, which never comes whole


class Strangers:
    """Hostile connections to a server on loopback; `opened`, `closed` and `open` count them by kind."""

    def __init__(self, address: str, secure: bool = True) -> None:
        self.host, self.port = split_address(address, "--server")
        assert is_loopback(self.host), "this attacks only its own machine"
        self.context = _trusting() if secure else None
        self.opened: Counter[str] = Counter()
        self.closed: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    @property
    def open(self) -> int:
        """Return the number of connections that are open now."""
        return self.opened.total() - self.closed.total()

    async def attack(self, count: int, again: bool = True) -> None:
        """Keep `count` connections open until cancelled."""
        names = list(KINDS)
        await asyncio.gather(*(self._one(names[number % len(names)], again) for number in range(count)))

    async def _one(self, kind: str, again: bool) -> None:
        while True:
            with contextlib.suppress(OSError, EOFError):
                await self._hold(kind)
            if not again:
                return
            await asyncio.sleep(PAUSE)

    async def _hold(self, kind: str) -> None:
        """Open a connection and hold it until the server closes it."""
        secure = None if kind == "handshake" else self.context
        try:
            reader, writer = await asyncio.open_connection(
                self.host, self.port, ssl=secure, ssl_handshake_timeout=60 if secure else None
            )
        except OSError:
            self.refused[kind] += 1
            raise
        self.opened[kind] += 1
        talking = asyncio.create_task(KINDS[kind](writer))  # type: ignore[arg-type]
        try:
            while await reader.read(1 << 12):
                pass
        finally:
            self.closed[kind] += 1
            talking.cancel()
            writer.close()


async def _nothing(writer: asyncio.StreamWriter) -> None:
    pass


async def _header(writer: asyncio.StreamWriter) -> None:
    writer.write(HEADER)
    await _drip(writer)


async def _body(writer: asyncio.StreamWriter) -> None:
    writer.write(HEADER + b"content-length: 9999\r\n\r\n")
    await _drip(writer)


async def _handshake(writer: asyncio.StreamWriter) -> None:
    writer.write(HELLO)


async def _drip(writer: asyncio.StreamWriter) -> None:
    while not writer.is_closing():
        writer.write(b"x")
        await asyncio.sleep(DRIP)


KINDS: dict[str, Callable[[asyncio.StreamWriter], Awaitable[None]]] = {
    "idle": _nothing,
    "header": _header,
    "body": _body,
    "handshake": _handshake,
}


@contextlib.contextmanager
def besieged(address: str, count: int, secure: bool = True, again: bool = True) -> Iterator[Strangers]:
    """Give strangers that attack from a thread of this process until the block ends."""
    strangers, loop = Strangers(address, secure), asyncio.new_event_loop()
    task = loop.create_task(strangers.attack(count, again))

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield strangers
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def _trusting() -> ssl.SSLContext:
    """Return TLS that asks for no certificate: a stranger has no CA."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def main() -> None:
    """Attack until the owner is gone."""
    leave_with(int(sys.argv[1]))
    asyncio.run(Strangers(sys.argv[2]).attack(int(sys.argv[3])))


if __name__ == "__main__":
    main()
