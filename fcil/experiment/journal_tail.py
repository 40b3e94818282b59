"""records.jsonl of a run that another process plays, read as it grows."""

from __future__ import annotations

from pathlib import Path

from fcil.core.errors import DamagedError
from fcil.experiment.journal import FILE, parse_line
from fcil.federation.round_record import RoundRecord


class Tail:
    """The rounds of a run under way, each given once; its directory may still be missing."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._rounds = 0  # read so far
        self._bytes = 0

    def new(self) -> list[RoundRecord]:
        """Return the rounds that were added since the last look, from the first one again if the file was cut."""
        found = []
        for line in self._lines():
            try:
                found.append(parse_line(self.path, self._rounds, line))
            except DamagedError:  # cut and grown past this place since the last look, or no journal at all
                self._rounds = self._bytes = 0
                break
            self._rounds += 1
            self._bytes += len(line)
        return found

    def _lines(self) -> list[bytes]:
        """Return the whole lines after those read; the last one may be half-written, and waits for the next look."""
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self._bytes:
                    self._rounds = self._bytes = 0
                file.seek(self._bytes)
                return [line + b"\n" for line in file.read().split(b"\n")[:-1]]
        except OSError:
            return []
