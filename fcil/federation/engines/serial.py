"""The plain engine: one client after another, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fcil.core.registry import Member
from fcil.federation.client import run_job
from fcil.federation.engines.base import Workplace, register_engine

if TYPE_CHECKING:
    from fcil.core.messages import Failure, Order, Reply
    from fcil.federation.aggregation import Aggregator
    from fcil.federation.simulated_clients import SimulatedClients
    from fcil.federation.traffic import RoundTraffic
    from fcil.models.client_context import ClientContext


class SerialEngine:
    """Carries out every order in turn."""

    def __init__(self, sites: SimulatedClients, aggregator: Aggregator, local: ClientContext) -> None:
        self.clients = sites
        self.aggregator = aggregator
        self.local = local

    def run(self, traffic: RoundTraffic, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        """Yield one answer per order, in the order of the orders."""
        for order in orders:
            job, broadcast = self.clients.prepare(traffic, order), traffic.broadcast_to(order)
            models = {digest: traffic.models[digest] for digest in broadcast.digests(order.participate)}
            done = run_job(self.clients.role, self.aggregator, job, broadcast, models, self.local)
            yield self.clients.finish(traffic, job, done)

    def close(self) -> None:
        """Do nothing: there are no workers."""


def _build(place: Workplace) -> SerialEngine:
    return SerialEngine(place.clients, place.recipe.aggregator(), place.local)


register_engine(Member("serial", "one client after another, in this process", _build))
