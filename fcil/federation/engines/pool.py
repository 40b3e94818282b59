"""The base of engines with workers: participants train on workers while bystanders run in this process."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fcil.core.errors import FederationError
from fcil.core.messages import Failure, Order, Reply
from fcil.federation.client import Done, Job
from fcil.federation.engines.base import Publication, Workplace, default_workers
from fcil.federation.engines.serial import SerialEngine

if TYPE_CHECKING:
    from fcil.federation.traffic import RoundTraffic

SLICE = 0.05  # seconds of bystanders between two looks at the workers
ATTEMPTS = 2  # a worker may die once over an order


class Pool(ABC):
    """A round's orders on several workers; the answer does not depend on the worker.

    Clients that do not train stay in this process: detection is cheap, and its inference is shared by all of them.
    An order whose worker dies is repeated by another one, once; then it is a failure like any other.
    """

    def __init__(self, place: Workplace) -> None:
        self.clients = place.clients
        self.here = SerialEngine(place.clients, place.recipe.aggregator(), place.local)
        self.workers = place.workers or default_workers(place.recipe.device)

    @abstractmethod
    def publish(self, published: Publication) -> None:
        """Make a round's broadcast and models known to all workers, once."""

    @abstractmethod
    def idle(self) -> list[int]:
        """Return the workers that can take a job."""

    @abstractmethod
    def submit(self, worker: int, job: Job) -> None:
        """Give a job to an idle worker."""

    @abstractmethod
    def collect(self, timeout: float | None) -> list[tuple[int, Done | None]]:
        """Return the workers that have finished within the time, each with its answer; no answer means that it died."""

    @abstractmethod
    def close(self) -> None:
        """Stop all workers."""

    def run(self, traffic: RoundTraffic, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        """Yield one answer per order, in no particular order."""
        waiting = deque((order, 1) for order in orders if order.participate)
        bystanders = self.here.run(traffic, [order for order in orders if not order.participate])
        watching = len(waiting) < len(orders)
        if waiting:
            self.publish(Publication(traffic.broadcast, dict(traffic.models)))
        jobs: dict[int, Job] = {}  # by client; a repeated order is the same job
        busy: dict[int, tuple[Order, int]] = {}
        while waiting or busy or watching:
            for worker in self.idle():
                if waiting:
                    busy[worker] = waiting.popleft()
                    order = busy[worker][0]
                    if order.client not in jobs:
                        jobs[order.client] = self.clients.prepare(traffic, order)
                    self.submit(worker, jobs[order.client])
            until = time.monotonic() + SLICE
            while watching and time.monotonic() < until:
                answer = next(bystanders, None)
                watching = answer is not None
                if answer is not None:
                    yield answer
            if not waiting and not busy:
                continue
            for worker, done in self.collect(0.0 if watching else None):
                if worker not in busy:  # it died while it had nothing to do, and another one has taken its place
                    continue
                order, attempt = busy.pop(worker)
                if done is None and attempt < ATTEMPTS:
                    waiting.append((order, attempt + 1))
                else:
                    finished = done or _lost(order.client, traffic.broadcast.context.round)
                    yield self.clients.finish(traffic, jobs.pop(order.client), finished)


def _lost(client: int, round: int) -> Done:
    """Return the end of an order whose workers died over it."""
    reason = f"its worker died {ATTEMPTS} times over this order"
    return Done(None, None, Failure(client, round, "worker", reason))


def refuse_start(what: str) -> FederationError:
    """Return the error of workers that cannot be started at all."""
    return FederationError(f"workers do not start: {what}; run.engine=serial runs without them")
