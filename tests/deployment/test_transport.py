"""Who the roster names is admitted while the server runs; what stands in the way is told once and stops nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

pytest.importorskip("flwr")

from fcil.core.errors import FederationError
from fcil.deployment.flower import transport
from fcil.deployment.flower.superlink_client import SuperLinkClient
from fcil.deployment.flower.transport import FlowerTransport
from fcil.deployment.keys.ssh import make_node_key
from fcil.deployment.server.roster import FILE, Roster


class FakeLink:
    """A link that admits whom it is told to, but for some."""

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.names: dict[int, str] = {}
        self.closed = False
        self.calls = 0

    def register(self, public_key: str, name: str) -> int:
        self._call(name)
        node = 100 + self.calls
        self.names[node] = name
        return node

    def unregister(self, node: int) -> None:
        self._call(self.names[node])
        del self.names[node]

    def nodes(self) -> set[int]:
        return set(self.names)

    def _call(self, name: str) -> None:
        self.calls += 1
        if self.closed:
            raise RuntimeError("Cannot send a request, as the client has been closed.")
        if name in self.refused:
            raise FederationError("the SuperLink fails")


class Watched:
    """A carrier over a fake link, its roster, and what it has warned of."""

    def __init__(self, keys: Path) -> None:
        self.keys = keys
        self.superlink = FakeLink()
        self.warned: list[str] = []
        self.add("berlin")
        self.transport = FlowerTransport(cast(SuperLinkClient, self.superlink), self.keys, self.warned.append)

    def names(self) -> list[str]:
        return [member.name for member in self.transport.members()]

    def add(self, *names: str) -> None:
        """Register sites, each with a new key."""
        for name in names:
            path = self.keys / f"{name}.pub"
            path.write_bytes(make_node_key(name)[1])
            Roster.load(self.keys).add(path)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(transport, "LOOK", 0.01)
    made = Watched(tmp_path)
    yield made
    made.transport.close()


def until(happened: Callable[[], bool]) -> None:
    """Wait for something, and a few looks at the roster more."""
    ends = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < ends, "it does not happen"
        time.sleep(0.01)
    time.sleep(0.1)


def test_who_is_added_is_admitted_and_who_is_removed_is_not(watched: Watched) -> None:
    assert watched.names() == ["berlin"]
    watched.add("paris")
    until(lambda: watched.names() == ["berlin", "paris"])
    Roster.load(watched.keys).remove("berlin")
    until(lambda: watched.names() == ["paris"])
    assert watched.warned == []


def test_a_quarantine_is_followed_and_the_node_stays_admitted(watched: Watched) -> None:
    for begins in (True, False):
        Roster.load(watched.keys).quarantine("berlin", begins)
        until(lambda: [member.quarantined for member in watched.transport.members()] == [begins])  # noqa: B023
    assert watched.names() == ["berlin"]


def test_an_entry_that_cannot_be_registered_is_told_once_and_does_not_stop_the_next(watched: Watched) -> None:
    watched.superlink.refused = {"oslo", "berlin"}
    watched.add("oslo", "paris")
    Roster.load(watched.keys).remove("berlin")
    until(lambda: "paris" in watched.names())
    assert sorted(watched.warned) == [
        "berlin is still admitted: the SuperLink fails",
        "oslo is not admitted: the SuperLink fails",
    ]
    watched.superlink.refused.clear()
    until(lambda: watched.names() == ["oslo", "paris"])


def test_a_damaged_roster_is_told_once_and_followed_again_when_it_is_whole(watched: Watched) -> None:
    path = watched.keys / FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    until(lambda: bool(watched.warned))
    (warning,) = watched.warned
    assert warning.startswith(f"the roster is not followed: {path} is damaged")
    assert watched.names() == ["berlin"], "who was admitted stays so"
    path.write_bytes(whole)
    watched.add("paris")
    until(lambda: watched.names() == ["berlin", "paris"])


def test_a_link_that_is_closed_meanwhile_ends_the_watch_in_silence(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", crashed.append)
    watched.superlink.closed = True
    watched.add("paris")
    until(lambda: not watched.transport._watcher.is_alive())
    assert (crashed, watched.warned) == ([], [])


def test_after_closing_nobody_looks_at_the_roster(watched: Watched) -> None:
    watched.transport.close()
    assert not watched.transport._watcher.is_alive()
    calls = watched.superlink.calls
    watched.add("paris")
    time.sleep(0.1)
    assert watched.superlink.calls == calls


def test_a_server_does_not_start_with_an_entry_that_cannot_be_registered(watched: Watched) -> None:
    watched.superlink.refused = {"berlin"}
    with pytest.raises(FederationError, match="berlin is not admitted: the SuperLink fails"):
        FlowerTransport(cast(SuperLinkClient, watched.superlink), watched.keys, watched.warned.append)


def test_without_a_roster_there_is_nothing_to_watch() -> None:
    FlowerTransport(cast(SuperLinkClient, FakeLink()), None).close()
