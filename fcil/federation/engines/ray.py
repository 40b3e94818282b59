"""A Ray cluster: one actor per worker; the data and each round's broadcast are in the object store once."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcil.core.errors import ConfigError
from fcil.core.lazy import LazyModule
from fcil.core.messages import Message, decode, encode, encode_into, encoded_size
from fcil.core.registry import Member
from fcil.federation.client import Done, Job
from fcil.federation.engines.base import Publication, Recipe, SharedSamples, Worker, Workplace, register_engine
from fcil.federation.engines.pool import Pool, refuse_start
from fcil.federation.engines.ray_address import check_address

ray: Any = LazyModule("ray")  # an extra, and slow to import
Bytes = NDArray[np.uint8]
STARTS = 3  # actors that die before their first job
DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no reports to Ray's makers
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the coming default; the other one warns
    # By default Ray's workers yield to every other process. On a busy machine they then hardly start, are taken for
    # dead after a minute and are started again: the run stands still.
    "RAY_worker_niceness": "0",
}


def set_defaults() -> None:
    """Set Ray's environment variables for this process and its children, unless the user has set them."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)


def _encoded(message: Message) -> Bytes:
    """Return a message as an array: the object store hands arrays out without a copy."""
    data = np.empty(encoded_size(message), dtype=np.uint8)
    encode_into(message, data.data)
    return data


class Actor:
    """A worker on some machine of the cluster."""

    def __init__(self, recipe: str, number: int, samples: Bytes) -> None:
        held = decode(samples.data, SharedSamples, limit=len(samples), share=True)
        self.worker = Worker(Recipe.read(recipe), held.samples(), number)
        self.number = 0

    def ready(self) -> None:
        """Return once the actor is built."""

    def run(self, number: int, broadcast: Bytes, job: bytes) -> Bytes:
        """Return the encoded answer to a job under a broadcast, which is decoded when it is a new one."""
        if number != self.number:
            self.worker.published = decode(broadcast.data, Publication, limit=len(broadcast), share=True)
            self.number = number
        return _encoded(self.worker.run(decode(job, Job)))


class RayEngine(Pool):
    """Runs a round's participants on a Ray cluster; without an address, on one that it starts on this machine."""

    def __init__(self, place: Workplace) -> None:
        super().__init__(place)
        self.recipe = place.recipe
        self.held = place.local.samples
        self.address = place.address
        self.actors: list[Any] = []
        self.answers: dict[Any, int] = {}  # what is under way: reference -> worker
        self.starting: set[int] = set()
        self.stillborn = 0
        self.number = 0  # of the broadcast
        self.owns_cluster = False
        if self.address:  # a cluster that cannot be reached is refused before the run has a directory
            self._connect()

    def publish(self, published: Publication) -> None:
        if not self.actors:
            self._connect()
            self.samples = ray.put(_encoded(SharedSamples.of(self.held)))
            self.actors = [None] * self.workers
            for worker in range(self.workers):
                self._start(worker)
        for worker in [worker for worker in self.answers.values() if worker not in self.starting]:
            ray.kill(self.actors[worker])  # busy with a round that its caller gave up
            self._start(worker)
        self.broadcast = ray.put(_encoded(published))
        self.number += 1

    def idle(self) -> list[int]:
        busy = set(self.answers.values())
        return [worker for worker in range(len(self.actors)) if worker not in busy]

    def submit(self, worker: int, job: Job) -> None:
        reference = self.actors[worker].run.remote(self.number, self.broadcast, encode(job))
        self.answers[reference] = worker

    def collect(self, timeout: float | None) -> list[tuple[int, Done | None]]:
        finished, _ = ray.wait(list(self.answers), num_returns=1, timeout=timeout)
        found: list[tuple[int, Done | None]] = []
        for reference in finished:
            worker = self.answers.pop(reference)
            began = worker in self.starting
            self.starting.discard(worker)
            try:
                data = ray.get(reference)
            except ray.exceptions.RayError as error:
                self._bury(worker, began, error)
                found += [] if began else [(worker, None)]
                continue
            if not began:
                found.append((worker, decode(data.data, Done, limit=len(data), share=True)))
        return found

    def close(self) -> None:
        for actor in self.actors:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(actor)
        self.actors, self.answers, self.starting = [], {}, set()
        if self.owns_cluster:
            ray.shutdown()
            self.owns_cluster = False

    def _connect(self) -> None:
        if ray.is_initialized():
            return
        if self.address:
            check_address(self.address)
        set_defaults()
        options: dict[str, Any] = {"num_cpus": self.workers, "include_dashboard": False} if not self.address else {}
        try:
            ray.init(address=self.address or "local", log_to_driver=False, logging_level=logging.WARNING, **options)
        except Exception as error:  # of many kinds, depending on what is wrong with the cluster or the installation
            what = f"run.address: Ray does not connect to {self.address}"
            what = what if self.address else "run.engine: Ray does not start on this machine"
            why = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(f"{what} ({why}); set run.engine to processes or serial to run without it") from error
        self.owns_cluster = True

    def _start(self, worker: int) -> None:
        variables = {"OMP_NUM_THREADS": str(self.recipe.threads)}
        if not self.address:
            variables["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
        options = {
            "num_cpus": 1,
            "num_gpus": 1 if self.recipe.device == "cuda" else 0,
            "runtime_env": {"env_vars": variables},
        }
        actor: Any = ray.remote(Actor).options(**options).remote(self.recipe.text(), worker, self.samples)
        self.actors[worker] = actor
        self.answers = {reference: owner for reference, owner in self.answers.items() if owner != worker}
        self.answers[actor.ready.remote()] = worker
        self.starting.add(worker)

    def _bury(self, worker: int, began: bool, error: Exception) -> None:
        self.stillborn = self.stillborn + 1 if began else 0
        if self.stillborn >= STARTS:
            raise refuse_start(f"a Ray actor ended before its first job ({error})")
        self._start(worker)


register_engine(
    Member(
        "ray",
        "participants on a Ray cluster, or on a local one",
        RayEngine,
        requires="ray",
        remedy="install fcil with its extra `ray`, or use serial or processes",
    )
)
