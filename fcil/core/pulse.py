"""Signs of life of a process that runs for months: for systemd's watchdog, and for health checks.

The main loop beats. A thread passes the sign on for as long as the last beat is young, so a loop that hangs is noticed,
also while the process as such is alive.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

FILE = ".alive"  # its time is that of the last sign
PERIOD = 5.0  # seconds between two signs
HUNG = 1800.0  # seconds without a beat after which a loop counts as hung, unless systemd names another time
DEAD = 60.0  # age of the file in seconds from which a process counts as ended or hung


class Pulse:
    """The time of the last beat of a loop."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def beat(self) -> None:
        """Note that the loop goes on."""
        self._last = time.monotonic()

    @property
    def age(self) -> float:
        """The seconds since the last beat."""
        return time.monotonic() - self._last


PULSE = Pulse()  # of this process's main loop


def allowance() -> float:
    """Return the seconds without a beat after which the loop counts as hung: systemd's WatchdogSec, where it is set."""
    given = os.environ.get("WATCHDOG_USEC", "")
    return int(given) / 1e6 if given.isdecimal() else HUNG


def notify(state: str) -> bool:
    """Tell systemd the state of this service, if it asked for that."""
    place = os.environ.get("NOTIFY_SOCKET", "")
    if not place:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.connect(f"\0{place[1:]}" if place.startswith("@") else place)
            line.sendall(state.encode())
    except OSError:
        return False
    return True


def seconds_since_sign(folder: Path) -> float | None:
    """Return the seconds since the last sign of life in a folder; None if there was never one."""
    try:
        return max(time.time() - (folder / FILE).stat().st_mtime, 0.0)
    except OSError:
        return None


class Signs:
    """Gives signs of life in a folder until the block ends, and runs some acts between them."""

    def __init__(self, folder: Path, acts: Sequence[Callable[[], None]] = (), pulse: Pulse = PULSE) -> None:
        self.path = folder / FILE
        self.acts = acts
        self.pulse = pulse
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def alive(self) -> bool:
        """Say whether the loop goes on."""
        return self.pulse.age < allowance()

    def give(self) -> None:
        """Give a sign, unless the loop hangs."""
        if self.alive:
            notify("WATCHDOG=1")
            with suppress(OSError):  # a full disk
                self.path.touch()

    def _run(self) -> None:
        while True:
            self.give()
            for act in self.acts:
                with suppress(Exception):  # what fails now is tried again
                    act()
            if self._ended.wait(PERIOD):
                return

    def __enter__(self) -> Signs:
        self.pulse.beat()
        self._thread.start()
        notify("READY=1")
        return self

    def __exit__(self, *_: object) -> None:
        notify("STOPPING=1")
        self._ended.set()
        self._thread.join(PERIOD)
        with suppress(OSError):
            self.path.unlink()
