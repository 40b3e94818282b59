"""A process gives signs of life while its loop beats, and none once the loop hangs."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fcil.core import pulse
from fcil.core.pulse import Pulse, Signs, notify, seconds_since_sign


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Return the socket at which systemd would listen."""
    place = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(place))
        line.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(place))
        yield line


def told(line: socket.socket) -> str:
    return line.recv(100).decode()


def test_systemd_is_told_of_start_life_and_end(systemd: socket.socket, tmp_path: Path) -> None:
    acts: list[int] = []
    with Signs(tmp_path, [lambda: acts.append(1)]):
        found = {told(systemd), told(systemd)}
        assert found == {"READY=1", "WATCHDOG=1"}
        while not acts:
            time.sleep(0.01)
        sign = seconds_since_sign(tmp_path)
        assert sign is not None
        assert sign < pulse.DEAD
    assert told(systemd) == "STOPPING=1"
    assert seconds_since_sign(tmp_path) is None


def test_a_loop_that_hangs_gives_no_sign(
    systemd: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    beating = Pulse()
    signs = Signs(tmp_path, pulse=beating)
    beating._last = time.monotonic() - 31
    assert not signs.alive
    signs.give()
    assert not (tmp_path / pulse.FILE).exists()
    systemd.setblocking(False)
    with pytest.raises(BlockingIOError):
        systemd.recv(1)
    beating.beat()
    signs.give()
    assert told(systemd) == "WATCHDOG=1"
    assert (tmp_path / pulse.FILE).exists()


def test_an_act_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "PERIOD", 0.01)
    acts: list[int] = []

    def fails() -> None:
        acts.append(1)
        raise OSError("a full disk")

    with Signs(tmp_path, [fails]):
        until = time.monotonic() + 30
        while len(acts) < 3 and time.monotonic() < until:
            time.sleep(0.01)
    assert len(acts) >= 3


def test_without_systemd_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", f"/nowhere/{os.getpid()}")
    assert not notify("READY=1")
