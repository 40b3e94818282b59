"""Processes that end when their parent process has ended, for any reason.

Nothing is imported here that takes time: a process has to watch its owner from its first moment.
"""

from __future__ import annotations

import os
import threading

POLL = 0.5  # seconds between looks at the owner


def leave_with(owner: int) -> None:
    """End this process as soon as its owner is gone, even in the middle of a job."""
    threading.Thread(target=_watch, args=(owner,), daemon=True).start()


def _watch(owner: int) -> None:
    while os.getppid() == owner:
        threading.Event().wait(POLL)
    os._exit(1)
