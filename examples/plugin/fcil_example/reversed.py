"""An engine: clients one after the other in this process, the last one first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fcil.core.messages import Failure, Order, Reply
from fcil.core.registry import Member
from fcil.federation.engines import SerialEngine, Workplace, register_engine
from fcil.federation.traffic import RoundTraffic


class ReversedEngine:
    """Answers may come in any order: the server sums them in the order of the clients."""

    def __init__(self, place: Workplace) -> None:
        self.serial = SerialEngine(place.clients, place.recipe.aggregator(), place.local)

    def run(self, traffic: RoundTraffic, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        """Yield one answer per order."""
        yield from self.serial.run(traffic, list(reversed(orders)))

    def close(self) -> None:
        """Nothing runs elsewhere."""


register_engine(Member("reversed", "one client after another, the last one first", ReversedEngine))
