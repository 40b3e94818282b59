"""One client's round, with its errors turned into messages; and the states of all simulated clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fcil.local import Local
from fcil.methods.base import ClientRole
from fcil.wire import Broadcast, Failure, Message, Order, Reply


def run_client(
    role: ClientRole[Any], state: Message, broadcast: Broadcast, order: Order, arrival: Tensor, local: Local
) -> tuple[Message, Reply | Failure]:
    """Return the client's new state and its reply; after an error its former state and a failure."""
    try:
        local.current_stage = "start"
        return role.round(state, broadcast, order, arrival, local)
    except Exception as error:  # whatever goes wrong at a client must not stop the federation
        reason = f"{type(error).__name__}: {error}"
        return state, Failure(order.client, broadcast.moment.round, local.current_stage, reason)


@dataclass
class ClientStore:
    """The clients' states by number; a client that was never seen starts with the role's initial state."""

    role: ClientRole[Any]
    states: dict[int, Message] = field(default_factory=dict)

    def load(self, client: int) -> Message:
        """Return the client's state."""
        state = self.states.get(client)
        return state if state is not None else self.role.init()

    def save(self, client: int, state: Message) -> None:
        """Keep the client's state."""
        self.states[client] = state
