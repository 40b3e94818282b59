"""A consistent copy of a server's run and keys, also while the server runs."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from fcil.core.errors import ConfigError, DamagedError, FileError, reason
from fcil.core.files import PARTIAL, exists, sync
from fcil.deployment.server import audit_log
from fcil.deployment.server.roster import Roster
from fcil.deployment.server.state import ServedCheckpoint
from fcil.experiment.checkpoint import FILE, PREVIOUS, read_message
from fcil.experiment.restore import read_journal
from fcil.experiment.run_directory import LOCK_FILE

RUN, KEYS = "run", "keys"  # folders of a backup
LEFT_OUT = (LOCK_FILE, PREVIOUS, "flower")
TRIES, PAUSE = 5, 0.5  # a round may end while its files are copied


def back_up(run: Path, keys: Path | None, to: Path) -> int:
    """Copy a run and a folder of keys to a new folder, and return the number of its finished rounds.

    The copy is read back before the folder has its name; if a step fails, nothing of it stays.
    """
    if exists(to):
        raise ConfigError(f"{to} exists; name a new folder for the backup, for instance with the date in its name")
    partial = to.with_name(f".{to.name}.{os.getpid()}{PARTIAL}")
    try:
        partial.mkdir(parents=True, mode=0o700)
        try:
            rounds = _copied_run(run, partial / RUN)
            if keys is not None:
                _copy(keys, partial / KEYS, ())
                Roster.load(partial / KEYS)
                audit_log.entries(partial / KEYS)
            partial.rename(to)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        sync(to.parent)
    except OSError as error:
        raise FileError(f"{to} cannot be written: {reason(error)}") from error
    return rounds


def _copied_run(run: Path, to: Path) -> int:
    """Copy a run until checkpoint and records belong together, and return its rounds."""
    for attempt in range(TRIES):
        try:
            # The checkpoint first: records are only added, so those of its rounds are there a moment later.
            _copy(run, to, LEFT_OUT, (FILE,))
            checkpoint = read_message(to / FILE, ServedCheckpoint)
            read_journal(to, checkpoint).drop_rest()
        except (DamagedError, FileNotFoundError):
            if attempt == TRIES - 1:
                raise
            shutil.rmtree(to, ignore_errors=True)
            time.sleep(PAUSE)
            continue
        return checkpoint.rounds
    raise AssertionError("unreachable")


def _copy(source: Path, to: Path, left_out: tuple[str, ...], first: tuple[str, ...] = ()) -> None:
    """Copy a folder with the modes of its files; partial files and links are left out."""
    to.mkdir(mode=0o700)
    for path in sorted(source.iterdir(), key=lambda path: (path.name not in first, path.name)):
        if path.name in left_out or path.name.endswith((PARTIAL, ".lock")) or path.is_symlink():
            continue
        if path.is_dir():
            _copy(path, to / path.name, ())
        elif path.is_file():
            _copy_file(path, to / path.name)


def _copy_file(source: Path, to: Path) -> None:
    """Copy a file, which is nobody else's to read while it is written, and see it to the disk."""
    with source.open("rb") as found, open(to, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as made:
        shutil.copyfileobj(found, made)
        made.flush()
        os.fchmod(made.fileno(), os.fstat(found.fileno()).st_mode & 0o777)
        os.fsync(made.fileno())
