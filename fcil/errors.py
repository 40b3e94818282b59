"""The errors a user can cause; the command line prints them as one sentence and exits with code 2."""

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
