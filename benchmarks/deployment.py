"""A deployed federation, compared with plain Flower's: seconds and bytes per round, and the server's memory.

Three sites on this machine, with TLS and node keys. Ours are `fcil federation serve`, `join` and (GLFC) `proxy`. The
reference is `flower-superlink` and three `flower-supernode` with the same certificates, keys and images, which run the
app in `plain_flower`: Flower's FedAvg, the same ResNet-18 and the same epochs, batches and steps in plain PyTorch. It
has Flower's defaults: its polls, and a process for each message. Both sides decode images once, before the rounds that
count. A round lasts from one line of the server's records to the next, so ours includes its checkpoint. The first
rounds are left out: of both the one in which processes start, of GLFC also those up to the arrival of all classes.

GLFC sees half of the classes at first, so that in the rounds that count it has a teacher and a memory (of all images:
it trains on as many as Flower). Its reference is the same plain averaging.

The server's memory is measured with real sites, too, but with a handful of 8 x 8 images, since only the size of the
model matters: the published ResNet-18, 45 MB.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.common import median, patterns
from benchmarks.measure import Measurement
from fcil.cli.extra import flower_extra
from fcil.core.errors import FederationError
from fcil.data.datasets.dataset import Source
from fcil.models import ModelConfig, grow, initial_state

SITES = tuple(f"site-{number}" for number in range(1, 11))
FEW = 3  # of them in the timed federations
CLASSES, PER_CLASS, SIDE = 10, 24, 32  # images of a site
WIDTH, EPOCHS, BATCH, RATE, DECAY = 16, 2, 32, 0.1, 1e-5
ROUNDS, ENOUGH = 6, 3  # timed: wanted, and what is enough on a slow machine
PATIENCE = 60.0  # seconds of a federation after which enough is enough
LIMIT = 480.0  # seconds of all, which take half of it on a quiet machine; what is not done by then fails
MANY_ROUNDS = 1000  # never reached: a federation is ended once its rounds are timed
MEMORY_ROUNDS = 3  # the first has no classes yet
BOUND = 1.3

OURS: Mapping[str, Any] = {
    "deployment.rounds": MANY_ROUNDS,
    "deployment.evaluate_every": 0,
    "deployment.deadline": 120.0,
    "deployment.attempts": 1,
    "deployment.image_size": SIDE,
    "federation.merge_rounds": 0,
    "scenario.participants": len(SITES),
    "scenario.memory": CLASSES * PER_CLASS,
    "train.epochs": EPOCHS,
    "train.batch_size": BATCH,
    "train.learning_rate": RATE,
    "train.weight_decay": DECAY,
    "model.width": WIDTH,
    "run.threads": 1,
}
PLAIN: Mapping[str, Any] = {
    "sites": FEW,
    "rounds": MANY_ROUNDS,
    "classes": CLASSES,
    "width": WIDTH,
    "epochs": EPOCHS,
    "batch-size": BATCH,
    "learning-rate": RATE,
    "weight-decay": DECAY,
}


def model_bytes(width: int, classes: int) -> int:
    """Return the size of a model."""
    state = grow(initial_state(ModelConfig(width=width), 3, 1), classes, 2)
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def settings_of(method: str, sites: int) -> dict[str, Any]:
    """Return the settings of one of our timed federations."""
    return {**OURS, "method.name": method, "deployment.min_sites": sites}


def lengths(moments: list[float]) -> list[float]:
    """Return the seconds from each line to the next."""
    return [later - earlier for earlier, later in pairwise(moments)]


class Bench:
    """The folders and keys that all federations of one run share."""

    def __init__(self, folder: Path, limit: float = LIMIT, sites: tuple[str, ...] = SITES) -> None:
        from benchmarks import parties  # noqa: PLC0415 (it needs the extra `flower`)

        self.parties = parties
        self.folder = folder
        self.until = time.monotonic() + limit
        self.sites = sites
        parties.make_keys(folder / "keys", sites)

    def place(self, name: str, data: str, sites: int) -> Any:
        """Return a federation's place."""
        return self.parties.Place(self.folder / name, self.folder / "keys", self.folder / data, self.sites[:sites])

    def fill(self, data: str, source: Source, classes: range, sites: int) -> None:
        """Give each site images of some classes."""
        for name in self.sites[:sites]:
            self.parties.fill(self.folder / data / name, source, classes)

    def flower(self) -> tuple[list[float], dict[str, Any]]:
        """Return the seconds of plain Flower's rounds, and where its clients spend them."""
        place = self.place("plain", "images", FEW)
        with self.parties.plain(place, PLAIN, self.until) as running:
            found = running.follow(place.folder / self.parties.JOURNAL, ROUNDS + 1, ENOUGH + 1, PATIENCE)
        records = self.parties.plain_records(place)
        assert all(record["reports"] == FEW for record in records), records
        parts = {key: median([record[key] for record in records[1:]]) for key in ("start", "load", "fit")}
        return lengths(found), {f"flower_client_{key}": seconds for key, seconds in parts.items()}

    def finetune(self) -> tuple[list[float], list[dict[str, Any]]]:
        """Return the seconds and records of our plain averaging; its first round tells the server of the classes."""
        place = self.place("finetune", "images", FEW)
        with self.parties.ours(place, settings_of("finetune", FEW), self.until) as running:
            moments = running.follow(place.journal, ROUNDS + 2, ENOUGH + 2, PATIENCE)
        return lengths(moments)[1:], trained(place.records()[2 : len(moments)])

    def glfc(self, source: Source) -> tuple[float, list[float], list[dict[str, Any]]]:
        """Return the seconds of GLFC's round in which its head grows, then seconds and records of those after it."""
        place = self.place("glfc", "halves", FEW)
        self.fill("halves", source, range(CLASSES // 2), FEW)
        with self.parties.ours(place, settings_of("glfc", FEW), self.until) as running:
            running.follow(place.journal, 1, 1, PATIENCE)
            self.fill("halves", source, range(CLASSES // 2, CLASSES), FEW)
            before = 3 + len(place.records())  # taken in, announced and learned for the first time
            moments = running.follow(place.journal, before + ROUNDS, before + ENOUGH, PATIENCE)
        records = place.records()[: len(moments)]
        grown = next(number for number, record in enumerate(records) if record["classes"] == CLASSES)
        growth, *following = lengths(moments)[grown - 1 :]
        return growth, following, trained(records[grown + 1 :])

    def memory(self, sites: int, more: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Return the peak memory in MB of the server, its SuperLink and the sites, with models of 45 MB."""
        place = self.place(f"memory-{sites}", "tiny", sites)
        tiny = {"deployment.image_size": 8, "train.epochs": 1, "model.width": 64}
        with self.parties.ours(
            place, {**settings_of("finetune", sites), **tiny, **(more or {})}, self.until
        ) as running:
            running.follow(place.journal, MEMORY_ROUNDS, MEMORY_ROUNDS, PATIENCE)
            server, link = self.parties.peaks(running.running["server"].pid)
            site, node = self.parties.peaks(running.running[SITES[0]].pid)
        seconds = median([record["seconds"] for record in trained(place.records()[1:], sites)])
        found = {"server_mb": server, "superlink_mb": link, "site_mb": site, "supernode_mb": node}
        return {**found, "model_mb": model_bytes(64, 2) / 1e6, "seconds_per_round": seconds}


def trained(records: list[dict[str, Any]], sites: int = FEW) -> list[dict[str, Any]]:
    """Return records of rounds in which every site has trained; anything else is no measurement."""
    for record in records:
        if record["reports"] != sites:
            raise FederationError(f"a round went wrong: {record}")
    return records


def traffic(method: str, records: list[dict[str, Any]]) -> Measurement:
    """Return the bytes of a round, compared with one model to each site and back."""
    up, down = (median([float(record[key]) for record in records]) / 1e6 for key in ("bytes_up", "bytes_down"))
    model = model_bytes(WIDTH, CLASSES) / 1e6
    least = 2 * FEW * model
    details = {"up": up, "down": down, "model": model, "sites": FEW}
    return Measurement(
        f"deployment.bytes.{method}", up + down, least, (up + down) / least, None, "at most", "MB per round", details
    )


def pace(method: str, rounds: list[float], flower: list[float], further: dict[str, Any]) -> Measurement:
    """Return the median round, compared with Flower's."""
    mine, reference = median(rounds), median(flower)
    size = {"sites": FEW, "images": CLASSES * PER_CLASS, "epochs": EPOCHS, "width": WIDTH}
    details = {**size, "rounds": rounds, "flower_rounds": flower, **further}
    name = f"deployment.round.{method}"
    return Measurement(name, mine, reference, mine / reference, BOUND, "at most", "s per round", details)


def memory(found: dict[str, float], sites: int) -> Measurement:
    """Return the peak memory of the server and its SuperLink together."""
    peak = (found["server_mb"] + found["superlink_mb"]) / 1024
    name = f"deployment.memory.{sites}"
    return Measurement(name, peak, None, None, None, "at most", "GB at its peak", dict(found))


def measure() -> Iterator[Measurement]:
    """Yield round times and bytes of plain averaging and of GLFC, then the server's memory."""
    with ExitStack() as stack:
        stack.enter_context(flower_extra())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        stack.enter_context(mock.patch.dict(os.environ, environment()))
        bench = Bench(folder)
        source = patterns(CLASSES, PER_CLASS, SIDE)
        bench.fill("images", source, range(CLASSES), FEW)
        flower, client = bench.flower()
        rounds, records = bench.finetune()
        yield pace("finetune", rounds, flower, client)
        yield traffic("finetune", records)
        growth, rounds, records = bench.glfc(source)
        yield pace("glfc", rounds, flower, {**client, "growth_round": growth})
        yield traffic("glfc", records)
        bench.fill("tiny", patterns(2, 4, 8), range(2), len(SITES))
        for sites in (FEW, len(SITES)):
            yield memory(bench.memory(sites), sites)


def environment() -> dict[str, str]:
    """Return what all processes are started with: one thread each, and this source first."""
    root = str(Path(__file__).parent.parent)
    return {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
