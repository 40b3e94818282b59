"""A relay between the parties and their server: it delays data and cuts links, as it is told on its standard input.

`python relay.py LISTEN-HOST PORT SERVER-HOST PORT`; then `cut [HOST]`, `heal` and `delay SECONDS`, a line each.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

PIECE = 1 << 16


class Relay:
    """Connections to one server, with a common delay; those of cut hosts end, and no new ones begin."""

    def __init__(self, server: tuple[str, int]) -> None:
        self.server = server
        self.delay = 0.0
        self.cut: set[str] = set()
        self.open: dict[asyncio.Task[None], str] = {}

    def tell(self, words: list[str]) -> None:
        """Follow a line of the standard input."""
        match words:
            case ["cut", *hosts]:
                self.cut |= set(hosts) or {"*"}
            case ["heal"]:
                self.cut.clear()
            case ["delay", seconds]:
                self.delay = float(seconds)
        for task, host in list(self.open.items()):
            if self._is_cut(host):
                task.cancel()

    def _is_cut(self, host: str) -> bool:
        return not self.cut.isdisjoint({host, "*"})

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection until either side ends it."""
        host, task = writer.get_extra_info("peername")[0], asyncio.current_task()
        assert task is not None
        self.open[task] = host
        with contextlib.suppress(OSError, asyncio.CancelledError):
            try:
                if not self._is_cut(host):
                    answers, requests = await asyncio.open_connection(*self.server)
                    try:
                        await asyncio.gather(self._pass(reader, requests), self._pass(answers, writer))
                    finally:
                        requests.transport.abort()
            finally:
                writer.transport.abort()
                del self.open[task]

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(PIECE):
            await asyncio.sleep(self.delay)
            writer.write(data)
            await writer.drain()
        writer.close()


async def main() -> None:
    """Relay until the standard input ends."""
    relay = Relay((sys.argv[3], int(sys.argv[4])))
    await asyncio.start_server(relay.serve, sys.argv[1], int(sys.argv[2]))
    loop, lines = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        relay.tell(line.decode().split())


if __name__ == "__main__":
    asyncio.run(main())
