"""The folders in which data sets are looked for, and the one that keeps downloaded and decoded data."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of fcil in the user's cache; it need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fcil"


def search_path() -> list[Path]:
    """Return the folders that are looked in, first to last: $FCIL_DATA, then the cache."""
    given = os.environ.get("FCIL_DATA")
    return [*([Path(given)] if given else []), cache_folder()]


def find_folder(name: str, holds: Callable[[Path], bool]) -> Path | None:
    """Return the first folder of that name in the search path, or of the path itself, that holds the data."""
    folders = [folder for root in search_path() for folder in (root / name, root)]
    return next((folder for folder in folders if holds(folder)), None)


def is_folder(path: Path) -> bool:
    """Say whether a path is a folder that can be looked at; a name that the system refuses is none."""
    with suppress(OSError):
        return path.is_dir()
    return False


def is_file(path: Path) -> bool:
    """Say whether a path is a file that can be looked at; a name that the system refuses is none."""
    with suppress(OSError):
        return path.is_file()
    return False
