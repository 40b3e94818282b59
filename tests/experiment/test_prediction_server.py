"""The endpoint of `fcil predict --serve`: what it answers, follows, refuses, and keeps up under load."""

from __future__ import annotations

import base64
import http.client
import io
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.colours import COLOURS, write_colour_model

from fcil.core.errors import ConfigError
from fcil.core.files import point_to
from fcil.experiment import followed_model
from fcil.experiment.followed_model import FollowedModel
from fcil.experiment.prediction_server import Limits, PredictionServer

PAINTS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
JSON = "application/json"


def picture(name: str, size: tuple[int, int] = (8, 8)) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((*size[::-1], 3), PAINTS[name], dtype=np.uint8)).save(buffer, "png")
    return buffer.getvalue()


def document(*names: str, **more: Any) -> bytes:
    return json.dumps({"images": [base64.b64encode(picture(name)).decode() for name in names], **more}).encode()


def form(*parts: tuple[str, bytes], boundary: str = "edge") -> tuple[bytes, str]:
    body = b"".join(
        f"--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + content + b"\r\n"
        for head, content in parts
    )
    return body + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


@contextmanager
def serving(place: Path, limits: Limits | None = None) -> Iterator[PredictionServer]:
    model = FollowedModel(place, "cpu", lambda _: None)
    with PredictionServer(model, "127.0.0.1", 0, limits) as server:
        running = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        running.start()
        try:
            yield server
        finally:
            server.shutdown()
            running.join()
            model.close()


def ask(server: PredictionServer, body: bytes | None, kind: str = JSON, path: str = "/predict", **more: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    try:
        headers = {"Content-Type": kind, **more}
        connection.request("GET" if body is None else "POST", path, body, headers)
        found = connection.getresponse()
        text = found.read()
        return found.status, json.loads(text) if found.headers["Content-Type"] == JSON else text
    finally:
        connection.close()


def answers(found: Any) -> list[str]:
    status, content = found
    assert status == 200, content
    return [one["predictions"][0]["class"] for one in content["predictions"]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PredictionServer]:
    file = write_colour_model(tmp_path_factory.mktemp("model") / "model.safetensors")
    with serving(file, Limits(body=1 << 16, samples=3, pixels=1000)) as server:
        yield server


def test_it_names_images_in_json_and_in_a_form(server: PredictionServer) -> None:
    assert answers(ask(server, document("red", "blue"))) == ["red", "blue"]
    status, content = ask(server, document("green", top=2))
    assert answers((status, content)) == ["green"]
    assert len(content["predictions"][0]["predictions"]) == 2
    ends = picture("green") + b"\r\n--edg\r\n\r\n"  # what looks like a boundary and is none belongs to the image
    body, kind = form(('name="a"; filename="x y.png"', picture("blue")), ('name="b"', ends), ('name="top"', b"1"))
    status, content = ask(server, body, kind)
    assert (status, [one["file"] for one in content["predictions"]]) == (200, ["x y.png", "image 1"])
    assert [[pair["class"] for pair in one["predictions"]] for one in content["predictions"]] == [["blue"], ["green"]]
    assert ask(server, None, path="/")[1]["classes"] == list(COLOURS)
    assert ask(server, None, path="/healthz") == (200, b"ok\n")


def test_what_it_does_not_take_gets_a_sentence_and_it_goes_on(server: PredictionServer) -> None:
    edge = "multipart/form-data; boundary=edge"
    huge = json.dumps({"images": [base64.b64encode(picture("red", (40, 40))).decode()]}).encode()
    refusals: list[tuple[bytes | None, str, str, int, str]] = [
        (b"nothing", JSON, "/predict", 400, "neither a form nor JSON"),
        (b"[" * 50_000, JSON, "/predict", 400, "neither a form nor JSON"),
        (b"[]", JSON, "/predict", 400, "it should be"),
        (b'{"images": [], "rows": []}', JSON, "/predict", 400, "it should be"),
        (b'{"images": "/etc/passwd"}', JSON, "/predict", 400, "it should be"),
        (b'{"images": ["/etc/passwd"]}', JSON, "/predict", 400, "number 0 is not base64"),
        (b'{"images": ["L2V0Yy9wYXNzd2Q="]}', JSON, "/predict", 400, "image 0 cannot be read as an image"),
        (b'{"images": [7]}', JSON, "/predict", 400, "number 0 is not base64"),
        (b'{"images": []}', JSON, "/predict", 400, "there are 0 samples; there should be 1 to 3"),
        (b'{"rows": [[1, 2]]}', JSON, "/predict", 400, "this model takes images"),
        (b'{"rows": ["/etc/passwd"]}', JSON, "/predict", 400, "each should be an object"),
        (document("red", top=0), JSON, "/predict", 400, "top: found 0"),
        (document("red", top="x"), JSON, "/predict", 400, "top: found 'x'"),
        (document("red", "red", "red", "red"), JSON, "/predict", 400, "there are 4 samples"),
        (huge, JSON, "/predict", 400, "the images have more than 1000 pixels"),
        (b"--edge\r\n\r\nx", edge, "/predict", 400, "the form has no end"),
        (b"x", "multipart/form-data", "/predict", 400, "the form has no end, or no boundary"),
        (b"\r\n--edge" * 7000, edge, "/predict", 400, "a part of the form has no headers"),
        (bytes(1 << 17), JSON, "/predict", 413, "a request has at most 65536 bytes"),
        (b"{}", JSON, "/other", 404, "samples go to /predict"),
        (None, JSON, "/other", 404, "there are /"),
    ]
    for body, kind, path, status, sentence in refusals:
        found = ask(server, body, kind, path)
        assert (found[0], sentence in found[1]["error"]) == (status, True), (body and body[:30], found)
    assert ask(server, document("red"), Host="evil.example")[0] == 403
    assert ask(server, b"", **{"Transfer-Encoding": "chunked"})[0] == 411
    assert answers(ask(server, document("red"))) == ["red"]


def raw(server: PredictionServer, words: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.server_port), timeout=60)
    connection.sendall(words)
    return connection


def wait_for(what: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not what():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_slow_clients_are_hung_up_on_and_too_many_are_refused(tmp_path: Path) -> None:
    file = write_colour_model(tmp_path / "model.safetensors")
    with serving(file, Limits(connections=3, seconds=1.0)) as server:
        slow = [
            raw(server, words)
            for words in (b"", b"POST /pre", b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n[")
        ]
        wait_for(lambda: len(server.open) == 3 or any(one.busy for one in server.open.values()))
        surplus = raw(server, b"")
        assert surplus.recv(100).startswith(b"HTTP/1.1 503") or len(server.open) < 3
        for connection in slow:
            assert b"200" not in connection.recv(100), "the end, or an error"
            connection.close()
        surplus.close()
        wait_for(lambda: not server.open)
        assert answers(ask(server, document("red"))) == ["red"]
        for _ in range(server.limits.at_once):
            server.turns.acquire()
        assert ask(server, document("red"))[0] == 503, "its deadline is over before its turn comes"
        for _ in range(server.limits.at_once):
            server.turns.release()


def test_under_load_no_request_is_dropped_while_releases_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_model, "LOOK", 0.01)
    releases = tmp_path / "state/releases"
    for number in range(1, 6):
        names = tuple(f"{name} {number}" for name in COLOURS)
        write_colour_model(releases / f"{number:04}-17/model.safetensors", names)
    point_to(releases / "current", "0001-17")
    body, done = document("red", "blue", "green"), threading.Event()
    with serving(tmp_path / "state") as server:

        def work(_: int) -> list[tuple[str, list[str]]]:
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
            found = []
            while not done.is_set() or not found:
                connection.request("POST", "/predict", body, {"Content-Type": JSON})
                reply = connection.getresponse()
                content = json.loads(reply.read())
                found.append((content["model"], answers((reply.status, content))))
            connection.close()
            return found

        with ThreadPoolExecutor(16) as pool:
            running = [pool.submit(work, number) for number in range(16)]
            for number in range(2, 6):
                point_to(releases / "current", f"{number:04}-17")
                wait_for(lambda number=number: server.model.loaded.name == f"{number:04}-17")  # type: ignore[misc]
            done.set()
            found = [one for each in running for one in each.result()]
        for model, given in found:
            assert given == [f"{name} {int(model[:4])}" for name in ("red", "blue", "green")], "of one model each"
        assert len({model for model, _ in found}) > 1
        assert ask(server, None, path="/")[1]["model"] == "0005-17"


def test_a_model_that_cannot_be_loaded_leaves_the_former_one(tmp_path: Path) -> None:
    file, said = write_colour_model(tmp_path / "model.safetensors"), list[str]()
    followed = FollowedModel(file, "cpu", said.append)
    followed.close()
    before = followed.loaded
    file.write_bytes(file.read_bytes()[:-1])
    followed.look()
    followed.look()
    assert followed.loaded is before
    assert len(said) == 1
    assert said[0].startswith(f"warning: {file} stays: {file} is ")
    write_colour_model(file, ("r", "g", "b"))
    followed.look()
    assert followed.loaded.predictor.class_names == ("r", "g", "b")
    with pytest.raises(ConfigError, match=r"--serve 1: cannot be listened at on 192\.0\.2\.1"):
        PredictionServer(followed, "192.0.2.1", 1)
