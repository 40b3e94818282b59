"""A deployed federation under 500 hostile connections, compared with itself: seconds per round, memory, a long header.

Three sites on this machine, with TLS and node keys, train a ResNet-18 by plain averaging. Quiet stretches of rounds
alternate with stretches under attack, in which `benchmarks/hostile.py` holds 500 connections of four kinds and opens
each again one second after the server has closed it. The round in which an attack begins or ends is left out. Memory is
that of the SuperLink process: its peak after all attacks, less its peak before the first. The long header has 96 MiB
without an end; it costs the process's own seconds of processor time.
"""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.common import median, patterns
from benchmarks.deployment import CLASSES, FEW, SIDE, Bench, environment, lengths, settings_of, trained
from benchmarks.hostile import besieged
from benchmarks.measure import Measurement
from benchmarks.owned import descendants
from fcil.cli.extra import flower_extra

ATTACKERS = 500
STRETCHES, ROUNDS = 2, 4  # pairs of stretches, and the rounds of each that count
PER_CLASS = 12  # images of a site
HEADER = 96 << 20
SLOWER, GROWTH, SECONDS = 1.5, 100.0, 1.0  # bounds: of the ratio, in MB, and of processor time


class Siege:
    """A federation that runs, and what is measured at it."""

    def __init__(self, place: Any, running: Any) -> None:
        self.place = place
        self.running = running
        self.address = ""

    def stretch(self) -> list[float]:
        """Return the seconds of the next rounds, without the one that is under way."""
        before = len(self.place.records())
        moments = self.running.follow(self.place.journal, before + ROUNDS + 1, before + ROUNDS + 1, 0.0)
        return lengths(moments[before:])

    def siege(self) -> tuple[list[float], dict[str, int]]:
        """Return the seconds of rounds under attack, and how often connections of each kind were opened."""
        with besieged(self.address, ATTACKERS) as strangers:
            while strangers.opened.total() < ATTACKERS:
                self.running.check()
                time.sleep(0.1)
            return self.stretch(), dict(strangers.opened)

    @property
    def process(self) -> int:
        """Return the SuperLink process."""
        server = self.running.running["server"].pid
        (found,) = (one for one in descendants({server}) - {server} if b"superlink_process" in _command(one))
        return found

    def megabytes(self, field: str) -> float:
        """Return a size from the process's status."""
        lines = Path(f"/proc/{self.process}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024 / 1e6

    def header(self) -> tuple[float, int]:
        """Send a header without an end; return the seconds of the process, and the bytes that the system took."""
        before, sent = self._seconds(), 0
        host, _, port = self.address.rpartition(":")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(socket.create_connection((host, int(port)), 60.0)) as line:
            try:
                line.sendall(b"GET / HTTP/1.1\r\nx: ")
                while sent < HEADER:
                    line.sendall(bytes(1 << 14))
                    sent += 1 << 14
            except OSError:
                pass
        return self._seconds() - before, sent

    def _seconds(self) -> float:
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def measure() -> Iterator[Measurement]:
    """Yield the round times, the growth of memory and the cost of a long header."""
    with ExitStack() as stack:
        stack.enter_context(flower_extra())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        stack.enter_context(mock.patch.dict(os.environ, environment()))
        bench = Bench(folder)
        bench.fill("images", patterns(CLASSES, PER_CLASS, SIDE), range(CLASSES), FEW)
        place = bench.place("strangers", "images", FEW)
        running = stack.enter_context(bench.parties.ours(place, settings_of("finetune", FEW), bench.until))
        siege = Siege(place, running)
        siege.address = running.address
        running.follow(place.journal, 2, 2, 0.0)
        yield from figures(siege)


def figures(siege: Siege) -> Iterator[Measurement]:
    """Yield what is measured at a federation that trains."""
    seconds, sent = siege.header()
    yield Measurement(
        "strangers.header", seconds, None, seconds, SECONDS, "at most", "s of processor time", {"sent": sent}
    )
    quiet: list[float] = []
    attacked: list[float] = []
    before, opened = 0.0, {}
    for _ in range(STRETCHES):
        quiet += siege.stretch()
        before = before or siege.megabytes("VmHWM")
        rounds, opened = siege.siege()
        attacked += rounds
    trained(siege.place.records()[2:])
    growth = siege.megabytes("VmHWM") - before
    yield pace(quiet, attacked, opened)
    yield Measurement("strangers.memory", growth, GROWTH, growth / GROWTH, 1.0, "at most", "MB", {"before": before})


def pace(quiet: list[float], attacked: list[float], opened: dict[str, int]) -> Measurement:
    """Return the median round under attack, compared with the quiet one."""
    ours, reference = median(attacked), median(quiet)
    details = {"attackers": ATTACKERS, "rounds": attacked, "quiet_rounds": quiet, "opened_last": opened}
    return Measurement("strangers.round", ours, reference, ours / reference, SLOWER, "at most", "s per round", details)
