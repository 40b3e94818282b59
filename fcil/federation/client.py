"""One client's round, with its errors turned into messages; and the states of all simulated clients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fcil.local import Local
from fcil.methods.base import ClientRole, Current
from fcil.wire import Broadcast, Failure, Message, Order, Reply


def run_client(
    role: ClientRole[Any], state: Message, broadcast: Broadcast, order: Order, current: Current, local: Local
) -> tuple[Message, Reply | Failure]:
    """Return the client's new state and its reply; after an error its former state and a failure."""
    try:
        local.current_stage = "start"
        return role.round(state, broadcast, order, current, local)
    except Exception as error:  # whatever goes wrong at a client must not stop the federation
        reason = f"{type(error).__name__}: {error}"
        return state, Failure(order.client, broadcast.moment.round, local.current_stage, reason)


class ClientStore:
    """The clients' states by number, and one array with the entropy that each of them measured last.

    A client that was never seen starts with the role's initial state. `changed` names the clients whose state is not
    the one it was when `changed` was last emptied.
    """

    def __init__(self, role: ClientRole[Any], states: dict[int, Message] | None = None) -> None:
        self.role = role
        self.states = dict(states or {})
        self.entropy: NDArray[np.float64] = np.empty(0)  # NaN: none yet
        self.changed: set[int] = set(self.states)

    def load(self, client: int) -> Message:
        """Return the client's state."""
        state = self.states.get(client)
        return state if state is not None else self.role.init()

    def current(self, client: int, samples: Tensor) -> Current:
        """Return what the client goes into a round with when it holds these samples."""
        known = client < len(self.entropy) and not math.isnan(self.entropy[client])
        return Current(samples, float(self.entropy[client]) if known else None)

    def save(self, client: int, state: Message, answer: Reply | Failure) -> None:
        """Keep the client's state and the entropy it measured, if it did."""
        if state is not self.states.get(client):
            self.states[client] = state
            self.changed.add(client)
        if isinstance(answer, Reply) and answer.diagnostics.entropy is not None:
            if client >= len(self.entropy):
                room = np.full(max(client + 1, 2 * len(self.entropy)) - len(self.entropy), np.nan)
                self.entropy = np.concatenate([self.entropy, room])
            self.entropy[client] = answer.diagnostics.entropy
