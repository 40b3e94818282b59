"""records.jsonl: one line per round, appended, read back as typed records once it matches the checkpoint's digest."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fcil.core.errors import DamagedError, FileError, reason
from fcil.core.files import append_durably, exists, read_bytes
from fcil.core.settings_table import shown
from fcil.federation.round_record import RoundRecord

FILE = "records.jsonl"
OPTIONAL = (
    "excluded",
    "backdoor",
    "calibration",
    "privacy",
    "not_applied",
    "began",
    "ended",
    "sites",
    "retired",
    "clipped",
)
_RECORD = TypeAdapter(RoundRecord)


class Journal:
    """The rounds of a run, on disk and in memory, and the digest of their lines."""

    def __init__(self, folder: Path, lines: list[bytes] | None = None) -> None:
        self.path = folder / FILE
        self.records = [parse_line(self.path, number, line) for number, line in enumerate(lines or [])]
        _check_tasks(self.path, self.records)
        self._size = sum(map(len, lines or []))
        self._digest = hashlib.sha256(b"".join(lines or []))

    @classmethod
    def read(cls, folder: Path, rounds: int, digest: str) -> Journal:
        """Return the first `rounds` of a folder, which must have this digest; what follows them is not looked at."""
        path = folder / FILE
        lines = _whole_lines(path) if rounds else []
        if len(lines) < rounds:
            raise DamagedError(f"{path} is damaged: it has {len(lines)} whole lines for {rounds} rounds")
        if hashlib.sha256(b"".join(lines[:rounds])).hexdigest() != digest:
            raise DamagedError(f"{path} is damaged: its first {rounds} lines do not match the checkpoint's digest")
        return cls(folder, lines[:rounds])

    @property
    def digest(self) -> str:
        """Return the digest of all lines."""
        return self._digest.hexdigest()

    def append(self, record: RoundRecord) -> None:
        """Add one line and see it to the disk."""
        line = as_line(record)
        append_durably(self.path, line)
        self._size += len(line)
        self._digest.update(line)
        self.records.append(record)

    def drop_rest(self) -> None:
        """Cut the file after these rounds: what follows came after the checkpoint, or was cut by a kill."""
        try:
            if exists(self.path):
                os.truncate(self.path, self._size)
        except OSError as error:
            raise FileError(f"{self.path} cannot be written: {reason(error)}") from error


def as_line(record: RoundRecord) -> bytes:
    """Return a record as one line of JSON."""
    return (json.dumps(as_document(record), allow_nan=False) + "\n").encode()


def as_document(record: RoundRecord) -> dict[str, Any]:
    """Return a record as plain JSON values."""
    document = asdict(record)
    for key in OPTIONAL:
        if not document[key]:
            del document[key]
    return document


def _whole_lines(path: Path) -> list[bytes]:
    """Return the lines of the file with their ends; a last one that a kill cut short has none and is left out."""
    if not exists(path):
        return []
    return [line + b"\n" for line in read_bytes(path).split(b"\n")[:-1]]


def parse_line(path: Path, number: int, line: bytes) -> RoundRecord:
    """Return the record in the line with this number, from 0, or raise a DamagedError."""
    try:
        record = _RECORD.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise DamagedError(f"{path}, line {number + 1}: {f'{key}: ' if key else ''}{first['msg']}") from error
    if record.round != number + 1:
        raise DamagedError(
            f"{path}, line {number + 1} is about round {record.round}; it should be about round {number + 1}"
        )
    return record


def _check_tasks(path: Path, records: Sequence[RoundRecord]) -> None:
    """Raise a DamagedError unless tasks follow each other, and each was measured on all of them so far."""
    task, tasks = 0, set[int]()  # the newest, and those that were measured
    for number, record in enumerate(records, 1):
        if not task <= record.task <= task + (number > 1):
            raise DamagedError(f"{path}, line {number}: task: found {record.task} after task {task}")
        task = record.task
        measured = list(zip(record.correct, record.total, strict=False))
        fits = len(record.correct) == len(record.total) and len(measured) in (0, task + 1)
        if not fits or any(not right <= total or not total for right, total in measured):
            raise DamagedError(
                f"{path}, line {number}: correct and total should count the test images of {task + 1} tasks, "
                f"found {shown(record.correct)} of {shown(record.total)}"
            )
        if any(not right <= total or not total for right, total in record.per_class.values()):
            raise DamagedError(f"{path}, line {number}: per_class: more images are right than there are")
        tasks |= {task} if measured else set()
        if measured and len(tasks) <= task:
            raise DamagedError(f"{path}, line {number}: task {task} was measured, but not every task before it")


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
