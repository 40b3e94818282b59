"""The HTTP server of `fcil watch`: it answers with the pages of the runs it was given, and with nothing else."""

from __future__ import annotations

import socket
import socketserver
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import fcil
from fcil.core.errors import ConfigError, reason
from fcil.core.net import is_loopback
from fcil.reporting.live.pages import Pages

IDLE = 30  # seconds after which a connection that says nothing is closed
HEADERS = {
    # Whatever a page holds, a browser that shows it talks to nobody but this server.
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline' data: blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class WatchServer(ThreadingHTTPServer):
    """Serves pages at an address; every request has a thread of its own, which ends with the process."""

    def __init__(self, pages: Pages, host: str, port: int) -> None:
        family, address = _resolved(host, port)
        self.pages = pages
        self.address_family = family
        self.is_local = is_loopback(address[0])
        self.own_names = {"localhost", host.lower(), address[0]}
        try:
            super().__init__(address, Handler)
        except OSError as error:
            raise ConfigError(
                f"--port {port}: cannot be listened at on {host} ({reason(error)}); name another --port or --host"
            ) from error

    def server_bind(self) -> None:
        """Bind without asking who this machine is: that question can take long, and the answer is not needed."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    @property
    def url(self) -> str:
        """Return what to type into a browser on this machine."""
        host = str(self.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that went away."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers one browser."""

    server: WatchServer
    server_version = f"fcil/{fcil.__version__}"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = IDLE

    def do_GET(self) -> None:
        """Answer with a page."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Answer as to GET, without the page."""
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        if not self._is_meant():
            self._send(HTTPStatus.FORBIDDEN, "text/plain; charset=utf-8", "this name is not the server's\n", with_body)
            return
        found = self.server.pages.answer(unquote(self.path.partition("?")[0], errors="surrogateescape"))
        if found is None:
            self._send(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", "there is no such page\n", with_body)
        else:
            self._send(HTTPStatus.OK, *found, with_body)

    def _is_meant(self) -> bool:
        """Say whether a browser asks for this server by one of its names.

        Any web page can have a name of its own lead to this machine, and would then be let in by the browser.
        """
        if not self.server.is_local:
            return True  # it has been opened to everybody, under names that nobody told us
        try:
            return urlsplit(f"//{self.headers.get('Host', '')}").hostname in self.server.own_names
        except ValueError:
            return False

    def _send(self, status: HTTPStatus, kind: str, text: str, with_body: bool) -> None:
        body = text.encode("utf-8", errors="replace")
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the terminal for what matters."""


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Return the first address that a name or an address stands for."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--host {host}: {reason(error)}; name an address of this machine") from error
    return family, (str(address[0]), port)
