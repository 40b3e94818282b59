"""The base of our HTTP servers."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from fcil.core.local_server import LocalHandler, LocalServer


def test_connections_wait_until_a_busy_server_takes_them() -> None:
    with LocalServer(LocalHandler, "127.0.0.1", 0, "--port") as server, ExitStack() as stack:
        for _ in range(60):  # nobody accepts any; one that finds no room would wait for a second and more
            stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port), timeout=0.9))
