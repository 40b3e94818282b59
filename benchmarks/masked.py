"""Masked sums between real sites, compared with reports in the clear: processor time of a round, the server's memory.

Five sites on this machine, with TLS and node keys, average a ResNet-18 of the published size, 11 million parameters,
which each trains for one epoch on 100 images of 32 x 32 pixels: little, so that the masks weigh much. The time of a
round is that of all processes together on the processor, Flower's included; the first rounds, without classes and with
a fresh head, are left out. The server's memory is the peak of its process, with a handful of images at ten sites and at
five.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.common import patterns
from benchmarks.deployment import CLASSES, SIDE, SITES, Bench, environment, model_bytes, settings_of, trained
from benchmarks.measure import Measurement
from benchmarks.owned import descendants
from fcil.cli.extra import flower_extra

FIVE, PER_CLASS, WIDTH = 5, 10, 64
BEFORE, ROUNDS = 2, 3  # that are left out, and that count
SLOWER, GROWTH = 1.5, 1.1  # bounds: of processor time, and of memory with twice as many sites
LIMIT, TICKS = 2400.0, os.sysconf("SC_CLK_TCK")
MASKED: Mapping[str, Any] = {"federation.aggregator": "masked"}
LARGE: Mapping[str, Any] = {"model.width": WIDTH, "train.epochs": 1, "deployment.deadline": 600.0}


def processor_seconds(roots: list[int]) -> float:
    """Return the seconds on the processor of these processes, of all that they have started, and of what has ended."""
    found = 0
    for process in descendants(roots):
        with suppress(OSError):  # it has ended
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            found += sum(map(int, fields[11:15]))
    return found / TICKS


def seconds(bench: Bench, name: str, more: Mapping[str, Any]) -> float:
    """Return the processor seconds of a round of a federation with further settings."""
    place = bench.place(name, "images", FIVE)
    with bench.parties.ours(place, {**settings_of("finetune", FIVE), **LARGE, **more}, bench.until) as running:
        moments = []
        for lines in (BEFORE, BEFORE + ROUNDS):
            running.follow(place.journal, lines, lines, 0.0)
            moments.append(processor_seconds([child.pid for child in running.running.values()]))
    trained(place.records()[BEFORE : BEFORE + ROUNDS], FIVE)
    return (moments[1] - moments[0]) / ROUNDS


def measure() -> Iterator[Measurement]:
    """Yield the cost of masks in processor time, then the server's memory."""
    with ExitStack() as stack:
        stack.enter_context(flower_extra())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        stack.enter_context(mock.patch.dict(os.environ, environment()))
        bench = Bench(folder, LIMIT)
        bench.fill("images", patterns(CLASSES, PER_CLASS, SIDE), range(CLASSES), FIVE)
        plain, masked = seconds(bench, "plain", {}), seconds(bench, "masked", MASKED)
        size = {"sites": FIVE, "images": CLASSES * PER_CLASS, "model_mb": model_bytes(WIDTH, CLASSES) / 1e6}
        yield Measurement("masked.round", masked, plain, masked / plain, SLOWER, "at most", "CPU s per round", size)
        bench.fill("tiny", patterns(2, 4, 8), range(2), len(SITES))
        few, many = (bench.memory(sites, MASKED) for sites in (FIVE, len(SITES)))
        ratio, details = many["server_mb"] / few["server_mb"], {"few": few, "many": many}
        yield Measurement(
            "masked.memory", many["server_mb"], few["server_mb"], ratio, GROWTH, "at most", "MB at its peak", details
        )
