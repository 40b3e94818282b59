"""Parts of a round: the first one of a trial up to its engine, and the end of one from given answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from fcil.core.messages import Failure, Order, Reply
from fcil.federation.server import Closed, Opened, Server
from fcil.federation.traffic import RoundTraffic
from fcil.testing import Trial


@dataclass
class CapturedError(Exception):
    """Carries a round's traffic and orders out of the simulation."""

    traffic: RoundTraffic
    orders: list[Order]


class Recorder:
    """An engine that carries out nothing."""

    def run(self, traffic: RoundTraffic, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        """Hand the round over."""
        raise CapturedError(traffic, list(orders))

    def close(self) -> None:
        """Do nothing."""


def first_round(made: Trial) -> tuple[RoundTraffic, list[Order]]:
    """Return the traffic and the orders of a trial's first round, which is not run."""
    with pytest.raises(CapturedError) as caught:
        next(replace(made.simulation, engine=Recorder()).rounds(made.simulation.start()))
    return caught.value.traffic, caught.value.orders


def aggregated(server: Server, opened: Opened, orders: Sequence[Order], answers: Iterable[Reply | Failure]) -> Closed:
    """Return the end of a round to which these answers came."""
    replies = server.expect(opened, orders)
    for answer in answers:
        replies.add(answer)
    return server.aggregate(opened, replies)
