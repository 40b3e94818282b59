"""Errors with a sentence for the user.

The command line prints it and exits with 2, with 1 for a federation that stopped, or with 130 after an interrupt.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

LONGEST = 4000  # characters of a sentence; twenty wrong keys take half of them
_STAGE = "at the stage "
_DISK = {
    errno.ENOSPC: "disk is full",
    errno.EDQUOT: "disk is full",
    errno.EROFS: "disk cannot be written",
    errno.EIO: "disk fails",
}


class FcilError(Exception):
    """A mistake that the caller can correct; the message names the finding and the remedy.

    It is one line, whatever a damaged file made it quote.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(one_line(sentence))


class ConfigError(FcilError):
    """A setting is unknown, out of range or contradicts another one."""


class DataError(FcilError):
    """A data set is missing or differs from the published one."""


class CheckpointError(FcilError):
    """A run directory cannot be resumed, or already holds another run."""


class FileError(FcilError):
    """A file cannot be read or written, for instance because the disk is full."""


class DamagedError(FileError):
    """A file is missing or not as it was written."""


class FederationError(FcilError):
    """The federation cannot go on, for instance because too few participants answered."""


class StoppedError(FcilError):
    """Ctrl-C or SIGTERM ended it early; the message says how to continue."""


def one_line(text: str) -> str:
    r"""Return a text as one short line, with control and unprintable characters escaped.

    >>> print(one_line("found a\nb and \x1b[31m"))
    found a b and \x1b[31m
    """
    joined = re.sub(r"\s*[^\S ]\s*", " ", text)
    shown = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii") for sign in joined)
    half = LONGEST // 2
    return shown if len(shown) <= LONGEST else f"{shown[:half]} ... {shown[-half:]}"


def system_words(error: OSError) -> str:
    """Return a system error as part of a sentence: the file's name and the reason.

    >>> system_words(FileNotFoundError(2, "No such file or directory", "a.toml"))
    'a.toml: No such file or directory'
    """
    words = error.strerror or str(error) or type(error).__name__
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return f"{' to '.join(names)}: {words}" if names else words


def reason(error: BaseException) -> str:
    r"""Return another library's words on an error in one line, without the path, which the caller names.

    >>> reason(FileNotFoundError(2, "No such file or directory", "x.npz")), reason(ValueError("no\nend"))
    ('No such file or directory', 'no end')
    """
    words = error.strerror if isinstance(error, OSError) else None
    return words or " ".join(str(error).split()) or type(error).__name__


def disk_problem(error: BaseException | None) -> str | None:
    """Return what ails a disk if an error came from one that is full or fails, also by way of other errors.

    >>> disk_problem(OSError(28, "No space left on device")), disk_problem(OSError(30, "Read-only file system"))
    ('disk is full', 'disk cannot be written')
    >>> disk_problem(ValueError("other"))
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in _DISK:
            return _DISK[error.errno]
        error = error.__cause__ or error.__context__
    return None


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
