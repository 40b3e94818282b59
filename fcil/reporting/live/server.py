"""The HTTP server of `fcil watch`: it answers with the pages of the runs it was given, and with nothing else."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import unquote

from fcil.core.local_server import LocalHandler, LocalServer
from fcil.reporting.live.pages import Pages

IDLE = 30  # seconds after which a connection that says nothing is closed
PLAIN = "text/plain; charset=utf-8"
HEADERS = {
    # Whatever a page holds, a browser that shows it talks to nobody but this server.
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline' data: blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class WatchServer(LocalServer):
    """Serves pages at an address; every request has a thread of its own, which ends with the process."""

    def __init__(self, pages: Pages, host: str, port: int) -> None:
        self.pages = pages
        super().__init__(Handler, host, port, "--port")


class Handler(LocalHandler):
    """Answers one browser."""

    server: WatchServer
    timeout = IDLE

    def do_GET(self) -> None:  # noqa: N802 (the name that http.server looks for)
        """Answer with a page."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:  # noqa: N802 (the name that http.server looks for)
        """Answer as to GET, without the page."""
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        if not self.is_meant():
            self._send(HTTPStatus.FORBIDDEN, PLAIN, "this name is not the server's\n", with_body)
            return
        found = self.server.pages.answer(unquote(self.path.partition("?")[0], errors="surrogateescape"))
        if found is None:
            self._send(HTTPStatus.NOT_FOUND, PLAIN, "there is no such page\n", with_body)
        else:
            self._send(HTTPStatus.OK, *found, with_body)

    def _send(self, status: HTTPStatus, kind: str, text: str, with_body: bool) -> None:
        self.reply(status, {"Content-Type": kind, **HEADERS}, text.encode("utf-8", errors="replace"), with_body)
