"""A quick check that a cluster answers at an address; Ray itself would try for minutes."""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit

from fcil.core.errors import ConfigError, system_words

PATIENCE = 5.0  # seconds
FOUND_BY_RAY = ("auto", "local")
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and an empty frame of settings
SETTINGS_FRAME = 4  # what a server answers with first; Ray speaks gRPC, which is HTTP/2


def check_address(address: str) -> None:
    """Raise a ConfigError unless a server like Ray's answers at the address within a few seconds."""
    if address in FOUND_BY_RAY:
        return
    host, port = _parts(address)
    try:
        with socket.create_connection((host, port), PATIENCE) as connection:
            if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
                return  # it would not answer a greeting in plain text
            connection.sendall(GREETING)
            answer = connection.recv(9, socket.MSG_WAITALL)
    except OSError as error:
        raise _unreachable(address, "no answer" if isinstance(error, TimeoutError) else system_words(error)) from error
    if len(answer) < 9 or answer[3] != SETTINGS_FRAME:
        raise _unreachable(address, "what answers there is not Ray")


def _parts(address: str) -> tuple[str, int]:
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise ConfigError(f"run.address: found {address!r}, should be HOST:PORT, ray://HOST:PORT or auto")
    return host, port


def _unreachable(address: str, why: str) -> ConfigError:
    return ConfigError(
        f"run.address: no Ray cluster can be reached at {address} ({why}); start one there with `ray start --head`, "
        "leave run.address out for one on this machine, or set run.engine to processes or serial"
    )
