"""The status of a running server: the parties as it sees them, its round, and its last warnings."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import fcil
from fcil.deployment.epoch import when
from fcil.deployment.keys.expiry import days_by_file
from fcil.deployment.transport.base import ConnectedParty
from fcil.deployment.transport.model_exchange import PartyTraffic
from fcil.experiment.party_status import WARNINGS, PartyFacts, Status, now, write_status

PARTIES = 5.0  # seconds for which the list of connected parties may be old


@dataclass
class LiveStatus:
    """Collects the facts of a server and writes them to its run's directory whenever one changes."""

    folder: Path
    status: Status

    def __post_init__(self) -> None:
        self.members: Callable[[], list[ConnectedParty]] = list
        self.facts: dict[int, PartyFacts] = {}
        self._lock = threading.Lock()
        self._written: Status = {}

    @classmethod
    def of(cls, folder: Path, federation: str, method: str, rounds: int, done: int, epoch: int) -> LiveStatus:
        """Return the status of a server that has just started."""
        status = Status(
            kind="server",
            federation=federation,
            method=method,
            version=fcil.__version__,
            started=now(),
            phase="starts",
            since=now(),
            round=done,
            rounds=rounds,
            ready=False,
            parties=[],
            warnings=[],
            certificates={},
        )
        if epoch:
            status["epoch"] = when(epoch)
        return cls(folder, status)

    def phase(self, words: str, ready: bool) -> None:
        """Note what the server does now; it is ready where rounds go on."""
        if self.status.get("phase") != words:
            self.status.update({"phase": words, "since": now(), "ready": ready})
            self.write()

    def warn(self, text: str) -> None:
        """Note a warning."""
        with self._lock:
            self.status["warnings"] = [*self.status["warnings"], {"time": now(), "text": text}][-WARNINGS:]
        self.write()

    def round(self, number: int, traffic: dict[int, PartyTraffic]) -> None:
        """Note a finished round, and the last answer of each party in it."""
        with self._lock:
            for party, found in traffic.items():
                facts = self.facts.setdefault(party, PartyFacts())
                facts.update({"seconds": round(found.seconds, 3), "up": found.up, "down": found.down})
                if found.samples is not None:
                    facts["samples"] = found.samples
                if found.release:
                    facts.update({"release": found.release, "answered": now()})
        self.status["round"] = number
        self.write()

    def look(self) -> None:
        """Look who is connected, and write it down if that has changed."""
        there = {member.number: member for member in self.members()}
        with self._lock:
            for number, member in there.items():
                facts = self.facts.setdefault(number, PartyFacts())
                facts.update(
                    {"number": number, "name": member.name, "role": member.role, "quarantined": member.quarantined}
                )
            changed = False
            for number, facts in self.facts.items():
                changed = changed or facts.get("connected") != (number in there)
                facts["connected"] = number in there
                if number in there:
                    facts["last_seen"] = now()
        if changed:
            self.write()

    def count_days(self, files: dict[str, Path]) -> None:
        """Note how many days the certificates in some files have left."""
        found = days_by_file(files)
        if found != self.status["certificates"]:
            self.status["certificates"] = found
            self.write()

    def document(self) -> Status:
        """Return the status as it is now."""
        with self._lock:
            parties = [
                PartyFacts(**self.facts[number]) for number in sorted(self.facts) if "name" in self.facts[number]
            ]
            return Status(**{**self.status, "parties": parties})

    def write(self) -> None:
        """Write the status."""
        write_status(self.folder, self.document())
