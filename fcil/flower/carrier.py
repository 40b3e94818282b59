"""Letters over Flower: whom the roster names is registered with the SuperLink, while it runs too."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from fcil.deployment.carrier import Envelope, Member
from fcil.deployment.roster import Roster
from fcil.errors import FcilError, FederationError
from fcil.flower.link import Letter, Link

LOOK = 1.0  # seconds between two looks at the roster


class FlowerCarrier:
    """Carries letters to the nodes of a link; without a roster, whoever connects is taken in."""

    def __init__(self, link: Link, keys: Path | None) -> None:
        self.link = link
        self.keys = keys
        self._members: dict[int, Member] = {}  # by node
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        if keys is not None:
            self._sync()
            threading.Thread(target=self._watch, daemon=True).start()

    def members(self) -> list[Member]:
        there = self.link.nodes()
        with self._lock:
            if self.keys is None:
                for node in sorted(there - self._members.keys()):
                    self._members[node] = Member(len(self._members), "", "")
            found = [member for node, member in self._members.items() if node in there]
        return sorted(found, key=lambda member: member.number)

    def exchange(
        self, envelopes: Sequence[Envelope], group: str, deadline: float, limit: int
    ) -> Iterator[tuple[int, bytes | FederationError]]:
        with self._lock:
            nodes = {member.number: node for node, member in self._members.items()}
        numbers = {node: number for number, node in nodes.items()}
        letters = []
        for envelope in envelopes:
            if envelope.to in nodes:
                letters.append(Letter(nodes[envelope.to], envelope.content, envelope.parcels))
            else:
                yield envelope.to, FederationError("it is no longer registered")
        for node, found in self.link.exchange(letters, group, deadline, limit):
            gone = isinstance(found, FederationError) and node not in self._members
            yield numbers[node], FederationError("it is no longer registered") if gone else found

    def _watch(self) -> None:
        """Follow the roster: who is added is admitted, who is removed is not any more."""
        while not self._stopped.wait(LOOK):
            try:
                self._sync()
            except FcilError:
                continue  # a roster that is being written, or a link that is going down: looked at again

    def _sync(self) -> None:
        assert self.keys is not None
        wanted = {entry.number: entry for entry in Roster.load(self.keys).entries if not entry.removed}
        with self._lock:
            known = {member.number: node for node, member in self._members.items()}
            for number in known.keys() - wanted.keys():
                self.link.unregister(known[number])
                del self._members[known[number]]
            for number in sorted(wanted.keys() - known.keys()):
                entry = wanted[number]
                node = self.link.register(entry.public_key, entry.name)
                self._members[node] = Member(number, entry.name, entry.role)

    def close(self) -> None:
        """Stop looking at the roster."""
        self._stopped.set()
