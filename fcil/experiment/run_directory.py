"""A directory for a run: free of others, made if it is missing, and held by one owner at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from fcil.core.errors import CheckpointError, DamagedError, FileError, reason
from fcil.core.files import exists
from fcil.experiment.checkpoint import has_checkpoint, resuming
from fcil.experiment.config import Config, differing_settings
from fcil.experiment.restore import newest_checkpoint

LOCK_FILE = ".lock"


class Lock:
    """A directory held for this process, until it is released or the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        try:
            self._handle: int | None = os.open(folder / LOCK_FILE, os.O_CREAT | os.O_RDWR, 0o644)
        except OSError as error:
            raise CheckpointError(f"{folder} cannot be written to: {folder / LOCK_FILE}: {reason(error)}") from error
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            raise CheckpointError(
                f"{folder} is in use by another process; wait for it or name another directory"
            ) from error

    def release(self) -> None:
        """Let go of the directory."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def check_free(folder: Path, config: Config, results: Sequence[str]) -> None:
    """Refuse a directory in which a run was begun, that has results of one, or that cannot be made."""
    try:
        if not exists(folder):
            return
    except FileError as error:
        raise CheckpointError(f"the run's directory cannot be made: {error}") from error
    if not folder.is_dir():
        raise CheckpointError(f"{folder} cannot be made a directory: it is a file")
    if has_checkpoint(folder):
        try:
            kept = newest_checkpoint(folder)
            differing = differing_settings(kept.document, config.document())
        except DamagedError as error:
            raise CheckpointError(
                f"{folder} holds a run, and {error}; try `{resuming(folder)}` or name another directory"
            ) from error
        if differing:
            raise CheckpointError(
                f"{folder} holds another run ({'; '.join(differing)}); name another directory, or continue that run "
                f"with {kept.advice(folder)}"
            )
        raise CheckpointError(
            f"{folder} holds this run already; continue it with {kept.advice(folder)} or name another directory"
        )
    left = [name for name in results if exists(folder / name)]
    if left:
        raise CheckpointError(
            f"{folder} holds {', '.join(left)} of a run without its checkpoint; move them away or name another one"
        )


def make_folder(folder: Path, undo: ExitStack) -> bool:
    """Make the directory, have what was made removed if a later step fails, and say whether anything was."""
    missing = [place for place in (folder, *folder.parents) if not exists(place)]
    for place in reversed(missing):
        try:
            place.mkdir(exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{folder} cannot be made a directory: {reason(error)}") from error
        undo.callback(_remove_folder, place)
    return bool(missing)


def _remove_folder(folder: Path) -> None:
    with suppress(OSError):  # somebody else may have put something there
        folder.rmdir()
