"""The address of a cluster is tried before Ray is asked, and nothing hangs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from fcil.core.errors import ConfigError
from fcil.federation.engines import ray_address as address
from fcil.federation.engines.ray_address import check_address


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def name(server: socket.socket, scheme: str = "") -> str:
    return f"{scheme}127.0.0.1:{server.getsockname()[1]}"


def answer(server: socket.socket, data: bytes) -> None:
    """Answer one caller and hang up."""

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1024)
            connection.sendall(data)

    threading.Thread(target=serve, daemon=True).start()


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_at_which_nobody_listens_is_refused(listener: socket.socket, scheme: str) -> None:
    place = name(listener, scheme)
    listener.close()
    with pytest.raises(ConfigError, match=rf"run.address: no Ray cluster can be reached at {place} \(Connection ref"):
        check_address(place)


def test_one_who_listens_and_never_answers_is_refused_after_a_while(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "PATIENCE", 0.05)
    with pytest.raises(ConfigError, match=r"\(no answer\)"):
        check_address(name(listener))


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["nothing", "HTTP/1.1"])
def test_one_who_answers_otherwise_is_refused(listener: socket.socket, said: bytes) -> None:
    answer(listener, said)
    with pytest.raises(ConfigError, match=r"\(what answers there is not Ray\)"):
        check_address(name(listener))


def test_a_server_that_speaks_its_language_passes_and_an_encrypted_one_is_not_greeted(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(listener, bytes([0, 0, 6, 4, 0, 0, 0, 0, 0]) + bytes(6))
    check_address(name(listener))
    monkeypatch.setenv("RAY_USE_TLS", "1")
    check_address(name(listener))


@pytest.mark.parametrize("written", ["garbage", "host:", ":6379", "host:port", "host:99999", "ray://"])
def test_what_is_no_address_is_refused(written: str) -> None:
    with pytest.raises(ConfigError, match=rf"run.address: found '{written}', should be HOST:PORT"):
        check_address(written)


@pytest.mark.parametrize("written", ["auto", "local"])
def test_what_ray_finds_by_itself_is_left_to_it(written: str) -> None:
    check_address(written)
