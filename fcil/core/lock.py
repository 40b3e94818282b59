"""A lock between processes, by a file."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType


class Lock:
    """An exclusive lock on a file, held until it is released or the process ends, however it ends.

    With `wait` the constructor waits until the lock is free; otherwise it raises BlockingIOError at once.
    """

    def __init__(self, path: Path, *, wait: bool = True) -> None:
        self._handle: int | None = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock; the file stays, since another process may be waiting for it."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def locked(folder: Path) -> Lock:
    """Return the lock of a folder that may not exist yet: a file next to it, which this process waits for."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    return Lock(folder.with_name(f"{folder.name}.lock"))
