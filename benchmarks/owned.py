"""A command that ends with its owner: `python -m benchmarks.owned OWNER COMMAND ...`.

Flower's commands start further processes, some in sessions of their own. If the owner is gone, all of them are killed.
Linux only, since it reads `/proc`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

POLL = 0.5  # seconds between looks at the owner


def descendants(roots: Iterable[int]) -> set[int]:
    """Return these processes, what they have started, and so on."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = set(roots)
    while further := {process for process, parent in parents.items() if parent in found} - found:
        found |= further
    return found


def kill_tree(roots: Iterable[int]) -> set[int]:
    """Kill these processes and all that they have started, and return them."""
    doomed = descendants(roots)
    for process in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return doomed


def main() -> None:
    """Run the command until it ends or the owner is gone."""
    owner = int(sys.argv[1])
    child = subprocess.Popen(sys.argv[2:])
    while os.getppid() == owner:
        try:
            sys.exit(child.wait(POLL))
        except subprocess.TimeoutExpired:
            continue
    kill_tree([child.pid])


if __name__ == "__main__":
    main()
