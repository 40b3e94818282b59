"""One owner at a time for a run's directory: an advisory lock that the system takes back when the process ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from fcil.errors import CheckpointError
from fcil.files import reason

FILE = ".lock"


class Lock:
    """A directory held for this process, until it is released or the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        try:
            self._handle: int | None = os.open(folder / FILE, os.O_CREAT | os.O_RDWR, 0o644)
        except OSError as error:
            raise CheckpointError(f"{folder} cannot be written to: {folder / FILE}: {reason(error)}") from error
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            raise CheckpointError(
                f"{folder} is in use by another process; wait for it or name another --out"
            ) from error

    def release(self) -> None:
        """Let go of the directory."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
