"""A command in a real terminal: a pseudo-terminal whose other end the test reads and types on."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

OWN = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from fcil.cli.app import main
sys.argv[0] = "fcil"
main()
"""
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """What a command wrote to its terminal so far, without the codes that move the cursor and choose colours."""

    def __init__(self, child: subprocess.Popen[bytes], handle: int) -> None:
        self.child = child
        self.handle = handle
        self.raw = b""

    @property
    def text(self) -> str:
        return CODES.sub("", self.raw.decode(errors="replace"))

    def wait_for(self, wanted: str, seconds: float = 120) -> None:
        """Read until a text that fits the pattern is there."""
        deadline = time.monotonic() + seconds
        while not re.search(wanted, self.text):
            assert time.monotonic() < deadline, f"no {wanted!r} in {self.text}"
            assert self._read(), f"it ended without {wanted!r}: {self.text}"

    def type(self, keys: bytes) -> None:
        os.write(self.handle, keys)

    def end(self, seconds: float = 120) -> int:
        """Read to the end, and return what the command ended with."""
        while self._read():
            pass
        return self.child.wait(seconds)

    def _read(self) -> bool:
        with suppress(OSError):  # what Linux says once the other end is closed
            if not select.select([self.handle], [], [], 1.0)[0]:
                return self.child.poll() is None
            data = os.read(self.handle, 65536)
            self.raw += data
            return bool(data)
        return False


@contextmanager
def in_terminal(*arguments: str, columns: int = 90) -> Iterator[Terminal]:
    """Run `fcil` with these arguments in a terminal of its own, on which Ctrl-C interrupts it."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    hidden = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    command = [sys.executable, "-c", OWN, *arguments]
    child = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env={**environment, "TERM": "xterm"}, start_new_session=True
    )
    os.close(slave)
    try:
        yield Terminal(child, master)
    finally:
        child.kill()
        child.wait()
        os.close(master)
