"""The status of a running site or proxy: its server, its rounds and its last answer."""

from __future__ import annotations

from pathlib import Path

import fcil
from fcil.deployment.keys.expiry import days_by_file
from fcil.experiment.party_status import WARNINGS, Status, now, write_status


class OwnStatus:
    """Collects the facts of a party and writes them to its folder whenever one changes."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.status = Status(
            kind=kind,
            name=kind,
            version=fcil.__version__,
            started=now(),
            phase="starts",
            since=now(),
            ready=False,
            connected=False,
            trained=0,
            failures=0,
            warnings=[],
            certificates={},
        )

    def connected(self, server: str, there: bool) -> None:
        """Note that the server admits this party and answers it, or that it does so no more."""
        if self.status.get("connected") != there or self.status.get("server") != server:
            self.status.update({"server": server, "connected": there, "ready": there, "since": now()})
            self.status["phase"] = "connected" if there else "not connected"
            self.write()

    def answered(self, number: int | None, seconds: float, size: int, failed: bool) -> None:
        """Note an answer to the server."""
        self.status.update({"answered": now(), "seconds": round(seconds, 3), "bytes": size})
        if number is not None:
            self.status["round"] = number
        if failed:
            self.status["failures"] += 1
        elif number is not None:
            self.status["trained"] += 1
        self.write()

    def holds(self, classes: int, images: int, samples: int | None) -> None:
        """Note how many classes and images a site has, and how many images the last round trained on."""
        self.status.update({"classes": classes, "images": images})
        if samples is not None:
            self.status["samples"] = samples

    def warn(self, text: str) -> None:
        """Note a warning."""
        self.status["warnings"] = [*self.status["warnings"], {"time": now(), "text": text}][-WARNINGS:]
        self.write()

    def count_days(self, files: dict[str, Path]) -> None:
        """Note how many days the certificates in some files have left."""
        found = days_by_file(files)
        if found != self.status["certificates"]:
            self.status["certificates"] = found
            self.write()

    def write(self) -> None:
        """Write the status."""
        write_status(self.folder, self.status)
