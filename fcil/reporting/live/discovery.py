"""Runs in the watched folders, and the progress of each, by a look at their files."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fcil.experiment.checkpoint import FILE, PREVIOUS
from fcil.experiment.journal import FILE as RECORDS_FILE
from fcil.experiment.party_status import FILE as STATUS_FILE
from fcil.experiment.party_status import is_alive
from fcil.experiment.run_directory import CONFIG_FILE, SUMMARY_FILE

DEPTH = 2  # folders below one that is watched: a directory of comparisons, each with its runs
SIGNS = (CONFIG_FILE, RECORDS_FILE, FILE, PREVIOUS)  # a folder with one of these files is a run's


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run; the stamp changes whenever there may be something new to show."""

    rounds: int
    finished: bool
    stamp: str


def find_runs(places: Sequence[Path]) -> dict[str, Path]:
    """Return the runs in some folders by names that differ, those of a folder in alphabetical order."""
    found: dict[str, Path] = {}
    for place in places:
        base = place.name if place.name not in ("", "..") else place.resolve().name
        for folder in _below(place, DEPTH):
            name = "/".join([base, *folder.relative_to(place).parts])
            names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
            found[next(free for free in names if found.get(free, folder) == folder)] = folder
    return found


def progress_of(folder: Path) -> RunProgress:
    """Return the progress of the run in a folder; a file that is missing or unreadable counts as empty."""
    records, checkpoint = _facts(folder / RECORDS_FILE), _facts(folder / FILE)
    finished = _facts(folder / SUMMARY_FILE)
    status = _facts(folder / STATUS_FILE)
    living = is_alive(folder) if status != (0, 0) else False
    stamp = "-".join(map(str, (*records, *checkpoint, *finished, *status, living)))
    return RunProgress(_lines(folder / RECORDS_FILE, *records), finished != (0, 0), stamp)


def _below(place: Path, depth: int) -> Iterator[Path]:
    """Yield the run that a folder is, or those below it; links are not followed."""
    try:
        is_run = any((place / name).is_file() for name in SIGNS)
        inner = sorted(entry.name for entry in os.scandir(place) if entry.is_dir(follow_symlinks=False))
    except OSError:  # a folder into which nobody may look holds nothing to show
        return
    if is_run:
        yield place
        return
    for name in inner if depth else ():
        if not name.startswith("."):
            yield from _below(place / name, depth - 1)


def _facts(path: Path) -> tuple[int, int]:
    """Return the size of a file and when it was written."""
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=1000)
def _lines(path: Path, size: int, written: int) -> int:
    """Return how many lines a file has, counted again only if it is another one by its size or its time."""
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0
