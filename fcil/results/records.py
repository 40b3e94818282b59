"""records.jsonl: one line per round, appended; after a kill the lines beyond the checkpoint are dropped."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from fcil.errors import CheckpointError
from fcil.federation.simulation import RoundRecord
from fcil.results.metrics import Record

FILE = "records.jsonl"


def append_record(folder: Path, record: RoundRecord) -> None:
    """Add one line and see it to the disk."""
    with (folder / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(record), allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_records(folder: Path) -> list[Record]:
    """Return the rounds written so far; a last line that a kill cut short is left out."""
    path = folder / FILE
    if not path.is_file():
        return []
    lines = path.read_text("utf-8").split("\n")
    records: list[Record] = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number == len(lines):  # no newline after it: the write was cut
                break
            raise CheckpointError(f"{path}, line {number} is not JSON: {error}") from error
    return records
