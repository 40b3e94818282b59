"""The plain engine: one client after another, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from fcil.federation.client import ClientStore, run_client
from fcil.local import Local
from fcil.wire import Broadcast, Failure, Order, Reply


class SerialEngine:
    """Runs every order in turn; `holding` says which samples a client holds in a round."""

    def __init__(self, store: ClientStore, holding: Callable[[int, int], Tensor], local: Local) -> None:
        self.store = store
        self.holding = holding
        self.local = local

    def run(self, broadcast: Broadcast, orders: Sequence[Order]) -> Iterator[Reply | Failure]:
        """Yield one answer an order, in the order of the orders."""
        for order in orders:
            current = self.store.current(order.client, self.holding(broadcast.moment.round, order.client))
            state = self.store.load(order.client)
            state, answer = run_client(self.store.role, state, broadcast, order, current, self.local)
            self.store.save(order.client, state, answer)
            yield answer

    def close(self) -> None:
        """Do nothing: there is nobody to stop."""
