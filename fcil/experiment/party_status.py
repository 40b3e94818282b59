"""status.json: what a running server, site or proxy knows of itself, for people and programs beside it.

It is written whenever something changes, and read by `fcil federation status`, the page and health checks. It is no
part of a run: whatever is missing or damaged in it counts as unknown.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict, cast

from fcil.core.files import dump_json, write_atomically
from fcil.core.pulse import DEAD, seconds_since_sign

FILE = "status.json"
WARNINGS = 20  # that are kept


class PartyFacts(TypedDict, total=False):
    """A party as the server sees it; times are ISO, seconds and bytes those of its last answer."""

    number: int
    name: str
    role: str
    connected: bool
    quarantined: bool
    last_seen: str
    release: str
    answered: str
    seconds: float
    samples: int
    up: int
    down: int


class Status(TypedDict, total=False):
    """The state of a party; servers have parties and rounds, sites and the proxy a server."""

    kind: str  # server, site or proxy
    name: str
    federation: str
    method: str
    version: str
    started: str
    phase: str  # what it does now, in words
    since: str  # and since when
    round: int
    rounds: int
    epoch: str
    ready: bool
    parties: list[PartyFacts]
    warnings: list[dict[str, str]]
    certificates: dict[str, int]  # days left, by file
    server: str
    connected: bool
    trained: int  # rounds since the start
    failures: int
    seconds: float
    samples: int
    bytes: int
    answered: str
    classes: int
    images: int
    alive: bool  # whether there are fresh signs of life; known to readers alone


def now() -> str:
    """Return the present time as it is written down."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_status(folder: Path, status: Status) -> None:
    """Write a status; where that fails, as on a full disk, the former one stays."""
    with suppress(Exception):
        write_atomically(folder / FILE, dump_json(status))


def read_status(folder: Path) -> Status:
    """Return the status in a folder, and if its party is alive; empty if there is none that can be read."""
    try:
        found: Any = json.loads((folder / FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return cast(Status, {**found, "alive": is_alive(folder)}) if isinstance(found, dict) else {}


def is_alive(folder: Path) -> bool:
    """Say whether a party gives signs of life in its folder."""
    sign = seconds_since_sign(folder)
    return sign is not None and sign < DEAD
