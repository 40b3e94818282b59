"""timings.jsonl: the seconds of each round's phases, a line per round.

They are no result: no digest covers them, two equal runs differ in them, and a line that is lost or cut is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fcil.core.files import append_durably, exists, read_bytes, write_atomically

FILE = "timings.jsonl"
MOST_PHASES = 16
MOST_SECONDS = 1e12


def append_timing(folder: Path, round: int, seconds: Mapping[str, float]) -> None:
    """Add the line of a round, counted from 1."""
    append_durably(folder / FILE, _line(round, seconds))


def read_timings(folder: Path, rounds: int) -> dict[int, dict[str, float]]:
    """Return the known seconds by phase of the first `rounds`, counted from 1; a round's last line counts."""
    found: dict[int, dict[str, float]] = {}
    if not exists(folder / FILE):
        return found
    for line in read_bytes(folder / FILE).split(b"\n"):
        number, seconds = _parse(line)
        if 1 <= number <= rounds:
            found[number] = seconds
    return found


def trim_timings(folder: Path, rounds: int) -> None:
    """Leave only the lines of the first `rounds`, so that what is added next begins a line."""
    if not exists(folder / FILE):
        return
    kept = read_timings(folder, rounds)
    content = b"".join(_line(number, seconds) for number, seconds in sorted(kept.items()))
    if content != read_bytes(folder / FILE):
        write_atomically(folder / FILE, content)


def _line(number: int, seconds: Mapping[str, float]) -> bytes:
    return (json.dumps({"round": number, **seconds}, allow_nan=False) + "\n").encode()


def _parse(line: bytes) -> tuple[int, dict[str, float]]:
    """Return a line's round and seconds; the round is -1 if it is no such line."""
    try:
        document: Any = json.loads(line)
        number = document.pop("round")
        seconds = {str(name): float(value) for name, value in document.items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return -1, {}
    sound = len(seconds) <= MOST_PHASES and all(0 <= value <= MOST_SECONDS for value in seconds.values())
    whole = isinstance(number, int) and not isinstance(number, bool) and math.isfinite(sum(seconds.values()))
    return (number, seconds) if sound and whole else (-1, {})
