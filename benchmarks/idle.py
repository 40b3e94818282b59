"""Real sites of a tiny model, from 3 to 50 on this machine: their start, their rounds, and then an idle federation.

A server and sites with TLS and node keys start, train for some rounds, and then wait for new images. CPU time and
memory of a party are those of its process and of those that it starts: Flower's at the server. The start of a site is
its CPU time until it is connected. CPU time while idle is extrapolated to an hour from FCIL_IDLE_MINUTES, 3 by default;
60 shows the hour itself. FCIL_IDLE_SITES names other numbers of sites; 50 take 12 GB.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.common import median, patterns
from benchmarks.deployment import Bench, environment, settings_of
from benchmarks.measure import Measurement
from benchmarks.owned import descendants
from fcil.cli.extra import flower_extra

CROWDS = tuple(int(number) for number in os.environ.get("FCIL_IDLE_SITES", "3,10,20,50").split(","))
MINUTES = float(os.environ.get("FCIL_IDLE_MINUTES", "3"))
SETTLE = 30.0  # seconds after the last round, in which parties still expect the next one
START = 240.0  # seconds that start and rounds may take with few sites
EACH = 30.0  # and more for each site
ROUNDS = 6
LEARNED = 2  # of them, after which classes have outputs and all sites train
SIGN, HERE = "the federation waits for new images", "connected to"
TICKS = os.sysconf("SC_CLK_TCK")
SITE, SERVER, PER_SITE = 75.0, 50.0, 10.0  # CPU seconds per hour: of a site, and of a server with so many sites
MEMORY = 300.0  # MB of an idle site


@dataclass
class Found:
    """What was found of one federation, by party: CPU seconds and megabytes."""

    start: dict[str, float] = field(default_factory=dict)
    round: float = 0.0  # CPU seconds of the server per round
    length: float = 0.0  # seconds of a round
    idle: dict[str, tuple[float, float]] = field(default_factory=dict)  # its own CPU time, and Flower's beside it
    seconds: float = 0.0  # idle
    memory: dict[str, float] = field(default_factory=dict)


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
    """Yield start, rounds, idle CPU time and memory for each number of sites."""
    with ExitStack() as stack:
        stack.enter_context(flower_extra())
        stack.enter_context(mock.patch.dict(os.environ, environment()))
        for sites in CROWDS:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                yield from figures(_found(Path(folder), sites), sites)


def _found(folder: Path, sites: int) -> Found:
    names = tuple(f"site-{number}" for number in range(1, sites + 1))
    bench = Bench(folder, START + EACH * sites + SETTLE + 60 * MINUTES + 60, names)
    bench.fill("tiny", patterns(2, 6, 8), range(2), sites)
    place = bench.place("idle", "tiny", sites)
    small = {"deployment.rounds": "open", "deployment.burst": ROUNDS, "deployment.image_size": 8, "model.width": 2}
    small["scenario.participants"] = sites
    found = Found()
    with bench.parties.ours(place, {**settings_of("finetune", sites), **small}, bench.until) as parties:
        _follow_start(parties, found)
        _follow_rounds(parties, place, found)
        _follow_rest(parties, bench.parties, found)
    return found


def _follow_start(parties: Any, found: Found) -> None:
    """Note down the CPU time of each site when it is connected."""
    waiting = {name: child.pid for name, child in parties.running.items() if name != "server"}
    while waiting:
        parties.check()
        for name in [name for name in waiting if HERE in (parties.folder / f"{name}.log").read_text("utf-8")]:
            found.start[name] = sum(cpu_seconds(waiting.pop(name)))
        time.sleep(0.1)


def _follow_rounds(parties: Any, place: Any, found: Found) -> None:
    """Note down what rounds cost the server in which all sites train."""
    process = parties.running["server"].pid
    parties.follow(place.journal, LEARNED, LEARNED, 0.0)
    before, begun = sum(cpu_seconds(process)), len(place.records())
    parties.follow(place.journal, ROUNDS, ROUNDS, 0.0)
    records = place.records()[begun:]
    found.round = (sum(cpu_seconds(process)) - before) / len(records)
    found.length = median([record["seconds"] for record in records])


def _follow_rest(parties: Any, module: Any, found: Found) -> None:
    """Note down the CPU time of each party while it is idle, and its memory then."""
    while SIGN not in (parties.folder / "server.log").read_text("utf-8", "replace"):
        parties.check()
        time.sleep(1.0)
    time.sleep(SETTLE)
    processes = {name: child.pid for name, child in parties.running.items()}
    began, before = time.monotonic(), {name: cpu_seconds(process) for name, process in processes.items()}
    while time.monotonic() < began + 60 * MINUTES:
        parties.check()
        time.sleep(1.0)
    found.seconds = time.monotonic() - began
    for name, process in processes.items():
        own, beside = cpu_seconds(process)
        found.idle[name] = own - before[name][0], beside - before[name][1]
        found.memory[name] = module.resident(process)


def figures(found: Found, sites: int) -> Iterator[Measurement]:
    """Yield the figures of one number of sites; of sites the median, and for memory the largest."""
    names = [name for name in found.idle if name != "server"]
    start = median([found.start[name] for name in names])
    yield Measurement(f"idle.start.{sites}", start, None, None, None, "at most", "CPU s of a site until connected")
    each, length = 1000 * found.round / sites, {"seconds": found.length}
    unit = "CPU ms of the server per site and round"  # `crowd` has a bound: with few sites a round's own cost shows
    yield Measurement(f"idle.round.{sites}", each, None, None, None, "at most", unit, length)
    of = {"server": found.idle["server"], "site": _middle([found.idle[name] for name in names])}
    for kind, (own, beside) in of.items():
        spent, bound = hourly(own + beside, found.seconds), SITE if kind == "site" else SERVER + PER_SITE * sites
        details: Mapping[str, float] = {"own": own, "flower": beside, "seconds": found.seconds}
        name = f"idle.{kind}.{sites}"
        yield Measurement(name, spent, bound, spent / bound, 1.0, "at most", "CPU s per hour", dict(details))
    memory = max(found.memory[name] for name in names)
    server = {"server": found.memory["server"]}
    yield Measurement(f"idle.memory.{sites}", memory, MEMORY, memory / MEMORY, 1.0, "at most", "MB of a site", server)


def _middle(given: list[tuple[float, float]]) -> tuple[float, float]:
    return sorted(given, key=sum)[len(given) // 2]
