"""journal.jsonl: what operators did to a federation, when and by whom; each line names the digest of the one before.

Nobody can change, drop or insert a line without breaking the chain after it. Lines can be cut off at the end, or all be
written anew: whoever keeps the digest of a line, as each command prints it, finds that out.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fcil.core.errors import DamagedError, FileError, reason
from fcil.core.files import append_durably, exists, read_bytes
from fcil.core.lock import Lock

FILE = "journal.jsonl"
FIRST = "0" * 64  # names no line: what the first one follows
SHOWN = 16  # characters of a digest for people


def note(folder: Path, event: str, **facts: Any) -> str:
    """Add an entry to the journal in a folder, which is the server's folder of keys if it has one; return its digest.

    It is noted before the deed: a deed that then fails leaves an entry, and none is without one.
    """
    try:
        with Lock(folder / f".{FILE}.lock"):
            lines = _lines(folder / FILE)
            entry = {
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                "by": _person(),
                "event": event,
                **facts,
                "previous": digest_of(lines[-1]) if lines else FIRST,
            }
            line = json.dumps(entry, allow_nan=False).encode()
            append_durably(folder / FILE, line + b"\n")
    except OSError as error:
        raise FileError(f"{folder / FILE} cannot be written: {reason(error)}") from error
    return digest_of(line)[:SHOWN]


def entries(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of a journal, or raise a DamagedError that names the first line that breaks the chain."""
    found: list[dict[str, Any]] = []
    previous = FIRST
    for number, line in enumerate(_lines(folder / FILE), 1):
        try:
            entry = json.loads(line)
            follows = isinstance(entry, dict) and entry.get("previous") == previous
        except ValueError:
            follows = False
        if not follows:
            raise DamagedError(
                f"{folder / FILE} is damaged: line {number} does not follow the one before; restore it from a backup"
            )
        found.append(entry)
        previous = digest_of(line)
    return found


def head(folder: Path) -> str:
    """Return the digest of the newest entry, for people; empty where there is none."""
    lines = _lines(folder / FILE)
    return digest_of(lines[-1])[:SHOWN] if lines else ""


def digest_of(line: bytes) -> str:
    """Return the digest of a line."""
    return hashlib.sha256(line).hexdigest()


def _lines(path: Path) -> list[bytes]:
    """Return the lines of a journal; a last one that a power cut has left unfinished is refused."""
    if not exists(path):
        return []
    *lines, rest = read_bytes(path).split(b"\n")
    if rest:
        raise DamagedError(f"{path} is damaged: its last line has no end; remove that line, whose deed was not done")
    return lines


def _person() -> str:
    """Return the user and the machine of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a number without a name, as in a container
        user = f"user {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
