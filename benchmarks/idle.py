"""An open federation with nothing to learn: CPU seconds per hour of each party, extrapolated from some minutes.

A server and three sites on this machine, with TLS and node keys, run their rounds and then wait for new images. CPU
time of a party is that of its process and of Flower's beside it. FCIL_IDLE_MINUTES changes the length, 3 by default; 60
shows the hour itself.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.common import patterns
from benchmarks.deployment import Bench, environment, settings_of
from benchmarks.measure import Measurement
from benchmarks.owned import descendants
from fcil.cli.extra import flower_extra

FEW = 3  # sites
MINUTES = float(os.environ.get("FCIL_IDLE_MINUTES", "3"))
SETTLE = 30.0  # seconds after the last round, in which parties still expect the next one
START = 240.0  # seconds that the rounds may take
SIGN = "the federation waits for new images"
TICKS = os.sysconf("SC_CLK_TCK")
BOUND = {"server": 150.0, "site": 75.0}  # CPU seconds per hour


def cpu_seconds(process: int) -> tuple[float, float]:
    """Return the CPU time of a process, and of all that it has started: of Flower's."""
    return _own_seconds(process), sum(map(_own_seconds, descendants({process}) - {process}))


def _own_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def hourly(spent: float, seconds: float) -> float:
    """Return CPU seconds per hour."""
    return spent * 3600 / seconds


def measure() -> Iterator[Measurement]:
    """Yield the CPU time of the server and of a site."""
    with ExitStack() as stack:
        stack.enter_context(flower_extra())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        stack.enter_context(mock.patch.dict(os.environ, environment()))
        bench = Bench(folder)
        bench.until = time.monotonic() + START + SETTLE + 60 * MINUTES + 60
        bench.fill("tiny", patterns(2, 6, 8), range(2), FEW)
        place = bench.place("idle", "tiny", FEW)
        small = {"deployment.rounds": "open", "deployment.burst": 2, "deployment.image_size": 8, "model.width": 2}
        with bench.parties.ours(place, {**settings_of("finetune", FEW), **small}, bench.until) as parties:
            found = _idle_seconds(parties)
        for name in ("server", *place.sites):
            yield _figure(name, *found[name])


def _idle_seconds(parties: Any) -> dict[str, tuple[float, float, float]]:
    """Return the CPU time of each party while it is idle, its own and Flower's, and the seconds that it took."""
    while SIGN not in (parties.folder / "server.log").read_text("utf-8", "replace"):
        parties.check()
        time.sleep(1.0)
    time.sleep(SETTLE)
    processes = {name: child.pid for name, child in parties.running.items()}
    began, before = time.monotonic(), {name: cpu_seconds(process) for name, process in processes.items()}
    while time.monotonic() < began + 60 * MINUTES:
        parties.check()
        time.sleep(1.0)
    seconds = time.monotonic() - began
    found = {}
    for name, process in processes.items():
        own, beside = cpu_seconds(process)
        found[name] = own - before[name][0], beside - before[name][1], seconds
    return found


def _figure(name: str, own: float, beside: float, seconds: float) -> Measurement:
    each, bound = hourly(own + beside, seconds), BOUND[name.partition("-")[0]]
    details = {"own": own, "flower": beside, "seconds": seconds}
    return Measurement(f"idle.{name}", each, bound, each / bound, 1.0, "at most", "CPU s per hour", details)
