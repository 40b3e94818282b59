"""One small HTTP endpoint that predicts: `fcil predict MODEL --serve HOST:PORT`.

    GET  /          the model: its name, classes and input
    GET  /healthz   "ok"
    POST /predict   images as parts of a form, or JSON: {"images": [base64, ...]} or {"rows": [...]}, and "top"

A request may take `Limits` of bytes, samples, pixels and seconds. More connections than there is room for are answered
with 503 at once. A model that is replaced drops no request: each is answered by the model that it began with.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fcil.core.errors import FcilError, one_line
from fcil.core.local_server import LocalHandler, LocalServer
from fcil.experiment.followed_model import FollowedModel, LoadedModel
from fcil.experiment.prediction_request import Asked, BadRequestError, read_request
from fcil.experiment.predictor import Prediction

JSON = {"Content-Type": "application/json", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
SLOWEST = 30.0  # seconds in which nothing of a request comes, or nothing of an answer is taken
LEFT = 1 << 20  # bytes of a body too large that are still read, so that its client sees the answer
PARTING = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


@dataclass(frozen=True)
class Limits:
    """What one request, and all together, may take."""

    body: int = 32 << 20  # bytes
    samples: int = 256
    pixels: int = 100_000_000  # of all images of a request, once decoded
    connections: int = 64
    at_once: int = 2  # predictions under way; others wait
    seconds: float = SLOWEST  # for a request from its first byte to its answer, and for a connection that is idle


@dataclass
class CountedConnection:
    """A connection, and since when it has been waited for."""

    socket: socket.socket
    since: float = field(default_factory=time.monotonic)
    busy: bool = False  # its request is whole and being answered


class PredictionServer(LocalServer):
    """Answers with predictions of the model at a place."""

    daemon_threads = False  # requests under way are answered before the end

    def __init__(self, model: FollowedModel, host: str, port: int, limits: Limits | None = None) -> None:
        self.model = model
        self.limits = limits or Limits()
        self.turns = threading.BoundedSemaphore(self.limits.at_once)
        self.open: dict[int, CountedConnection] = {}
        self.opening = threading.Lock()
        super().__init__(PredictionHandler, host, port, "--serve")

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection its thread, or refuse it where there are too many."""
        with self.opening:
            full = len(self.open) >= self.limits.connections
            if not full:
                self.open[id(request)] = CountedConnection(request)
        if not full:
            super().process_request(request, client_address)
            return
        request.setblocking(False)
        with suppress(OSError):  # it is gone already
            request.send(PARTING)
        self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        with self.opening:
            self.open.pop(id(request), None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Hang up on clients that are too slow; called between connections, and every half second."""
        self.hang_up(time.monotonic() - self.limits.seconds)

    def hang_up(self, before: float) -> None:
        """End the connections on which no request is being answered, and that have been waited for since a time."""
        with self.opening:
            for connection in self.open.values():
                if not connection.busy and connection.since <= before:
                    _shut(connection.socket)

    def server_close(self) -> None:
        """End once the requests under way are answered."""
        self.hang_up(time.monotonic())
        super().server_close()


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # it is gone already
        connection.shutdown(socket.SHUT_RDWR)


class PredictionHandler(LocalHandler):
    """Answers one client."""

    server: PredictionServer
    timeout = SLOWEST

    def setup(self) -> None:
        self.state = self.server.open[id(self.request)]
        super().setup()

    def handle_one_request(self) -> None:
        """Answer a request; the time begins anew when its first line is there, and when it is answered."""
        super().handle_one_request()
        self.state.since, self.state.busy = time.monotonic(), False

    def parse_request(self) -> bool:
        """Read the headers of a request."""
        self.state.since = time.monotonic()
        return super().parse_request()

    def do_GET(self) -> None:  # noqa: N802 (the name that http.server looks for)
        """Answer with facts about the model."""
        if self._turned_away():
            return
        if self.path == "/healthz":
            self.reply(HTTPStatus.OK, {"Content-Type": "text/plain; charset=utf-8"}, b"ok\n")
        elif self.path == "/":
            self._say(HTTPStatus.OK, _facts(self.server.model.loaded))
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there are /, /healthz and /predict")

    def do_POST(self) -> None:  # noqa: N802 (the name that http.server looks for)
        """Answer with predictions."""
        if self._turned_away():
            return
        body = self._body()
        if body is None:
            return
        if self.path != "/predict":
            self._refuse(HTTPStatus.NOT_FOUND, "samples go to /predict")
            return
        self.state.busy = True
        until = self.state.since + self.server.limits.seconds
        if not self.server.turns.acquire(timeout=max(until - time.monotonic(), 0)):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "there are too many requests; try again", {"Retry-After": "1"})
            return
        try:
            self._predict(body)
        finally:
            self.server.turns.release()

    def _turned_away(self) -> bool:
        if self.is_meant():
            return False
        self._refuse(HTTPStatus.FORBIDDEN, "this name is not the server's")
        return True

    def _body(self) -> bytes | None:
        """Return the body of a request, or answer why it is not read."""
        length, most = self.headers.get("Content-Length", ""), self.server.limits.body
        if not length.isascii() or not length.isdecimal() or "Transfer-Encoding" in self.headers:
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "a Content-Length is needed")
        elif len(length) > 12 or int(length) > most:
            self.rfile.read(LEFT if len(length) > 12 else min(int(length), LEFT))
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request has at most {most} bytes")
        else:
            body = self.rfile.read(int(length))
            if len(body) == int(length):
                return body
            self.close_connection = True  # it was hung up on, or is gone
        return None

    def _predict(self, body: bytes) -> None:
        loaded, limits = self.server.model.loaded, self.server.limits
        predictor = loaded.predictor
        try:
            asked = read_request(body, self.headers.get("Content-Type", ""), limits.samples, limits.pixels)
            top = min(asked.top, len(predictor.class_names))
            if (asked.rows is None) != (predictor.columns is None):
                raise BadRequestError(f"this model takes {'images' if predictor.columns is None else 'rows'}")
            found = predictor.predict(asked.images if asked.rows is None else asked.rows, top)
        except FcilError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
            return
        self._say(HTTPStatus.OK, {"model": loaded.name, "predictions": _documents(asked, found)})

    def _refuse(self, status: HTTPStatus, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        """Answer with an error; the connection ends, since its body may not have been read."""
        self.close_connection = True
        self._say(status, {"error": one_line(sentence)}, {"Connection": "close", **(headers or {})})

    def _say(self, status: HTTPStatus, document: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        self.reply(status, {**JSON, **(headers or {})}, json.dumps(document).encode() + b"\n")


def _facts(loaded: LoadedModel) -> dict[str, Any]:
    predictor = loaded.predictor
    taken = {"image_shape": predictor.image_shape} if predictor.columns is None else {"rows": predictor.columns.names}
    return {"model": loaded.name, "classes": predictor.class_names, **taken}


def _documents(asked: Asked, found: list[Prediction]) -> list[dict[str, Any]]:
    """Return a document per sample, as `fcil predict --json` prints it."""
    return [
        {
            "file": name,
            "none_of_these": one.rejected,
            "predictions": [{"class": label, "probability": value} for label, value in one.ranking],
        }
        for name, one in zip(asked.names, found, strict=True)
    ]
