"""Requests over Flower; parties in the roster are registered with the SuperLink, also while it runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fcil.core.errors import FcilError, FederationError
from fcil.deployment.flower.superlink_client import NodeRequest, SuperLinkClient
from fcil.deployment.server.roster import Roster, RosterEntry
from fcil.deployment.transport.base import ConnectedParty, Envelope

LOOK = 1.0  # seconds between two reads of the roster
LEAVING = 5.0  # seconds that the last read may take; a call that waits for the SuperLink ends when its client is closed


def _log(warning: str) -> None:
    """Write a warning to Flower's log, the default for callers without one of their own."""
    logging.getLogger("flwr").warning(warning)


class FlowerTransport:
    """A `Transport` to the nodes of a SuperLink; without a roster, every node that connects is admitted."""

    def __init__(self, superlink: SuperLinkClient, keys: Path | None, warn: Callable[[str], None] = _log) -> None:
        self.superlink = superlink
        self.keys = keys
        self.warn = warn
        self._told: set[str] = set()  # warnings given already
        self._members: dict[int, ConnectedParty] = {}  # by node
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        if keys is not None:
            problems = self._sync()
            if problems:
                raise problems[0]
            self._watcher.start()

    def members(self) -> list[ConnectedParty]:
        there = self.superlink.nodes()
        with self._lock:
            if self.keys is None:
                for node in sorted(there - self._members.keys()):
                    self._members[node] = ConnectedParty(len(self._members), "", "")
            found = [member for node, member in self._members.items() if node in there]
        return sorted(found, key=lambda member: member.number)

    def exchange(
        self, envelopes: Sequence[Envelope], group: str, deadline: float, limit: int
    ) -> Iterator[tuple[int, bytes | FederationError]]:
        with self._lock:
            nodes = {member.number: node for node, member in self._members.items()}
        numbers = {node: number for number, node in nodes.items()}
        requests = []
        for envelope in envelopes:
            if envelope.to in nodes:
                requests.append(NodeRequest(nodes[envelope.to], envelope.content, envelope.parcels))
            else:
                yield envelope.to, FederationError("it is no longer registered")
        for node, found in self.superlink.exchange(requests, group, deadline, limit):
            gone = isinstance(found, FederationError) and node not in self._members
            yield numbers[node], FederationError("it is no longer registered") if gone else found

    def _watch(self) -> None:
        """Follow the roster: admit added parties and turn removed ones away.

        A problem is reported once and retried at every read.
        """
        while not self._stopped.wait(LOOK):
            try:
                for problem in self._sync():
                    self._tell_once(str(problem))
            except (FcilError, OSError) as error:
                self._tell_once(f"the roster is not followed: {error}")
            except RuntimeError:  # httpx's, for a call on a client that was closed meanwhile
                return

    def _tell_once(self, warning: str) -> None:
        if warning not in self._told and not self._stopped.is_set():  # not while closing
            self._told.add(warning)
            self.warn(warning)

    def _sync(self) -> list[FederationError]:
        """Admit exactly the parties in the roster, and return the errors of single entries."""
        assert self.keys is not None
        wanted = {entry.number: entry for entry in Roster.load(self.keys).present}
        problems: list[FederationError] = []
        with self._lock:
            known = {member.number: node for node, member in self._members.items()}
            for number in sorted(known.keys() - wanted.keys()):
                with _noting(problems, f"{self._members[known[number]].name} is still admitted"):
                    self.superlink.unregister(known[number])
                    del self._members[known[number]]
            for number in known.keys() & wanted.keys():
                self._members[known[number]] = _member(wanted[number])
            for number in sorted(wanted.keys() - known.keys()):
                with _noting(problems, f"{wanted[number].name} is not admitted"):
                    self._admit(wanted[number])
        return problems

    def _admit(self, entry: RosterEntry) -> None:
        node = self.superlink.register(entry.public_key, entry.name)
        self._members[node] = _member(entry)

    def close(self) -> None:
        """Stop following the roster."""
        self._stopped.set()
        if self._watcher.is_alive():
            self._watcher.join(LEAVING)


def _member(entry: RosterEntry) -> ConnectedParty:
    return ConnectedParty(entry.number, entry.name, entry.role, entry.quarantined)


@contextmanager
def _noting(problems: list[FederationError], what: str) -> Iterator[None]:
    """Collect an error in a list, so that one entry does not stop the others."""
    try:
        yield
    except FcilError as error:
        problems.append(FederationError(f"{what}: {error}"))
