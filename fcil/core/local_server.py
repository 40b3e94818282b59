"""Base of our HTTP servers: at an address of this machine, a thread per connection, known by their own names alone."""

from __future__ import annotations

import socket
import socketserver
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import fcil
from fcil.core.errors import ConfigError, reason
from fcil.core.net import is_loopback


class LocalServer(ThreadingHTTPServer):
    """Listens at an address."""

    request_queue_size = 128  # connections that wait to be accepted; beyond Python's 5 some were reset under load

    def __init__(self, handler: type[LocalHandler], host: str, port: int, option: str) -> None:
        """Listen; `option` names the address in messages."""
        family, address = _resolved(host, port)
        self.address_family = family
        self.is_local = is_loopback(address[0])
        self.own_names = {"localhost", host.lower(), address[0]}
        try:
            super().__init__(address, handler)
        except OSError as error:
            raise ConfigError(
                f"{option} {port}: cannot be listened at on {host} ({reason(error)}); name another port or host"
            ) from error

    def server_bind(self) -> None:
        """Bind without asking who this machine is: that question can take long, and the answer is not needed."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    @property
    def url(self) -> str:
        """Return the address for a program on this machine."""
        host = str(self.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class LocalHandler(BaseHTTPRequestHandler):
    """Answers one client."""

    server: LocalServer
    server_version = f"fcil/{fcil.__version__}"
    sys_version = ""
    protocol_version = "HTTP/1.1"

    def is_meant(self) -> bool:
        """Say whether a client asks for this server by one of its names.

        Any web page can have a name of its own lead to this machine, and would then be let in by the browser.
        """
        if not self.server.is_local:
            return True  # it has been opened to everybody, under names that nobody told us
        try:
            return urlsplit(f"//{self.headers.get('Host', '')}").hostname in self.server.own_names
        except ValueError:
            return False

    def reply(self, status: HTTPStatus, headers: dict[str, str], body: bytes, with_body: bool = True) -> None:
        """Send a whole response."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no line per request."""


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Return the first address that a name or an address stands for."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--host {host}: {reason(error)}; name an address of this machine") from error
    return family, (str(address[0]), port)
