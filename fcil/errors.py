"""Errors with a sentence for the user: the command line prints it and exits with 2, or 1 for a stopped federation."""

from __future__ import annotations


class FcilError(Exception):
    """Something the caller can put right; the message says what was found and what would be right."""


class ConfigError(FcilError):
    """A setting is unknown, out of range or contradicts another one."""


class DataError(FcilError):
    """A data set is missing or is not what its name promises."""


class CheckpointError(FcilError):
    """A run directory cannot be resumed, or already holds another run."""


class FederationError(FcilError):
    """The federation cannot go on, for instance because too few participants answered."""


def reason(error: BaseException) -> str:
    r"""Return another library's words on an error in one line, without the path, which the caller names.

    >>> reason(FileNotFoundError(2, "No such file or directory", "x.npz")), reason(ValueError("no\nend"))
    ('No such file or directory', 'no end')
    """
    words = error.strerror if isinstance(error, OSError) else None
    return words or " ".join(str(error).split()) or type(error).__name__
