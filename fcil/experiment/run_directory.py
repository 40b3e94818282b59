"""The directory of a run: made if it is missing, refused if another run is in it, locked for one process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from fcil.core.errors import CheckpointError, DamagedError, FileError, reason
from fcil.core.files import exists
from fcil.core.lock import Lock
from fcil.experiment.checkpoint import has_checkpoint, resuming
from fcil.experiment.config import Config, differing_settings
from fcil.experiment.restore import newest_checkpoint

LOCK_FILE = ".lock"


def lock_folder(folder: Path) -> Lock:
    """Return the lock of a run's directory, or raise CheckpointError if another process has it."""
    path = folder / LOCK_FILE
    try:
        return Lock(path, wait=False)
    except BlockingIOError as error:
        raise CheckpointError(f"{folder} is in use by another process; wait, or name another directory") from error
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written to: {path}: {reason(error)}") from error


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
