"""Runs in processes of their own: `python -m fcil.core.subprocesses OWNER ...` is `fcil ...` that ends with its owner.

The watch has to begin before the command line is loaded, so nothing is imported here that takes time.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import IO

from fcil.core.errors import StoppedError
from fcil.core.parent_watch import leave_with

FINISHING = "finishing the current rounds and their checkpoints; repeat to stop at once"


def start_child(arguments: Sequence[str], output: int | IO[bytes]) -> subprocess.Popen[bytes]:
    """Start `fcil` with these arguments; it ends with this process, even if that is killed.

    Ctrl-C does not reach it, so that it hears of an interrupt once, from `stop_children`.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "fcil.core.subprocesses", str(os.getpid()), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=os.name == "posix",
    )


def stop_children(children: Iterable[subprocess.Popen[bytes]]) -> None:
    """Let each finish its round and its checkpoint, and wait for all."""
    running = [child for child in children if child.poll() is None]
    for child in running:
        child.send_signal(signal.SIGTERM)
    for child in running:
        child.wait()


def stopped(done: int, planned: int) -> StoppedError:
    """Return the message about an interrupt once the children have ended."""
    return StoppedError(f"interrupted with {done} of {planned} runs finished; the same command continues")


def main() -> None:
    """Run the command line for the owner named first."""
    leave_with(int(sys.argv.pop(1)))
    runpy.run_module("fcil", run_name="__main__")


if __name__ == "__main__":
    main()
