"""Errors with a sentence for the user: the command line prints it and exits with 2, or 1 for a stopped federation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_STAGE = "at the stage "


class FcilError(Exception):
    """Something the caller can put right; the message says what was found and what would be right."""


class ConfigError(FcilError):
    """A setting is unknown, out of range or contradicts another one."""


class DataError(FcilError):
    """A data set is missing or is not what its name promises."""


class CheckpointError(FcilError):
    """A run directory cannot be resumed, or already holds another run."""


class FileError(FcilError):
    """A file cannot be read or written, for instance because the disk is full."""


class DamagedError(FileError):
    """A file is missing or not as it was written."""


class FederationError(FcilError):
    """The federation cannot go on, for instance because too few participants answered."""


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Name what is being done, so that an error that leaves the block can say where it happened; see `stage_of`."""
    try:
        yield
    except Exception as error:
        if stage_of(error) is None:
            error.add_note(f"{_STAGE}{name}")
        raise


def stage_of(error: BaseException) -> str | None:
    """Return the innermost stage that an error left, if it left one."""
    notes: list[str] = getattr(error, "__notes__", [])
    return next((note.removeprefix(_STAGE) for note in notes if note.startswith(_STAGE)), None)
