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


class FileError(FcilError):
    """A file cannot be read or written, for instance because the disk is full."""


class DamagedError(FileError):
    """A file is missing or not as it was written."""


class FederationError(FcilError):
    """The federation cannot go on, for instance because too few participants answered."""
