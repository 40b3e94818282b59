"""All sites of a simulation: each has a store of its own, and all of them lie in this process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from fcil.core.messages import (
    Announcement,
    Diagnostics,
    Failure,
    Message,
    ModelParcel,
    ModelState,
    Order,
    Reply,
    Shape,
    Stream,
)
from fcil.data.samples import Samples
from fcil.federation.client import MODELS_HELD, Client, Done, Holding, Job, Stamped, state_before
from fcil.federation.traffic import RoundTraffic
from fcil.methods.base import ClientRole

NONE = -1


@dataclass(frozen=True)
class ClientsTable(Message):
    """What sites remember in addition to their states, a row per site: stamp, entropy (NaN: none) and models held."""

    digests: tuple[str, ...]
    clients: Annotated[Tensor, Shape(("clients",), torch.int64)]
    rounds: Annotated[Tensor, Shape(("clients",), torch.int64)]
    entropy: Annotated[Tensor, Shape(("clients",), torch.float64)]
    held: Annotated[Tensor, Shape(("clients", "models"), torch.int32)]  # positions in digests, newest first

    def __post_init__(self) -> None:
        if bool(((self.held < NONE) | (self.held >= len(self.digests))).any()):
            raise ValueError("a site holds a model that has no digest")


class SimulatedClients:
    """The stores of all simulated clients, by number; a client that was never seen takes no room.

    `changed` names the clients whose state is not the one it was when `changed` was last emptied.
    """

    def __init__(
        self, role: ClientRole[Any], seeds: Stream, holding: Callable[[int, int], Holding], samples: Samples
    ) -> None:
        self.role = role
        self.seeds = seeds
        self.holding = holding  # (round, client) -> what it finds in its data
        self.samples = samples
        self.kept: dict[int, Stamped] = {}
        self.former: dict[int, Stamped] = {}
        self.held: dict[int, tuple[str, ...]] = {}
        self.models: Mapping[str, ModelState] = {}  # a simulation has each model once, whoever holds it
        self.diagnostics: dict[int, Diagnostics] = {}  # of the round under way
        self.changed: set[int] = set()

    def site(self, client: int) -> Client:
        """Return the runner of one client."""
        return Client(client, self.role, SimulatedStore(self, client), self.seeds)

    def announce(self, round: int, clients: Iterable[int], catalogue: Sequence[str]) -> list[Announcement]:
        """Return what these clients announce at the start of a round."""
        return [self.site(client).announce(self.holding(round, client), self.samples, catalogue) for client in clients]

    def call(self, traffic: RoundTraffic, order: Order) -> Job:
        """Send an order to its client and return the job that the client makes of it."""
        self.models = traffic.models
        holding = self.holding(traffic.broadcast.context.round, order.client)
        return traffic.call(self.site(order.client), order, holding)

    def finish(self, traffic: RoundTraffic, job: Job, done: Done) -> Reply | Failure:
        """Let a client keep what its round left, note what a simulation measures of it, and return its answer."""
        client = job.order.client
        if done.diagnostics is not None:
            self.diagnostics[client] = done.diagnostics
        answer = self.site(client).finish(traffic.broadcast.context.round, job, done)
        if isinstance(answer, Reply):
            traffic.answered(answer)
        return answer

    def states(self) -> dict[int, Message]:
        """Return the states of all clients seen so far."""
        return {client: kept.state for client, kept in self.kept.items()}

    def table(self) -> ClientsTable:
        """Return the rest of what the sites remember."""
        clients = sorted({*self.kept, *self.held})  # who failed in its first round holds models and has no state
        digests = list(dict.fromkeys(digest for client in clients for digest in self.held.get(client, ())))
        places = {digest: place for place, digest in enumerate(digests)}
        rows = [[places[digest] for digest in self.held.get(client, ())] for client in clients]
        most = max(map(len, rows), default=0)
        held = np.array([row + [NONE] * (most - len(row)) for row in rows], dtype=np.int32)
        kept = [self.kept.get(client, Stamped(NONE, self.role.init())) for client in clients]
        return ClientsTable(
            tuple(digests),
            torch.tensor(clients, dtype=torch.int64),
            torch.tensor([one.round for one in kept], dtype=torch.int64),
            torch.tensor([math.nan if one.entropy is None else one.entropy for one in kept], dtype=torch.float64),
            torch.from_numpy(held.reshape(len(clients), most)),
        )

    def restore(self, states: Mapping[int, Message], table: ClientsTable) -> None:
        """Take over what sites remembered when a checkpoint was written: the latest state, and none from before."""
        columns = (table.clients.tolist(), table.rounds.tolist(), table.entropy.tolist(), table.held.tolist())
        self.kept, self.held = {}, {}
        for client, stamp, entropy, places in zip(*columns, strict=True):
            if stamp != NONE:
                self.kept[client] = Stamped(stamp, states[client], None if math.isnan(entropy) else entropy)
            self.held[client] = tuple(table.digests[place] for place in places if place != NONE)
        self.former = dict(self.kept)  # so that an earlier round is refused, and not begun from nothing
        self.changed = set()


class SimulatedStore:
    """One client's part of the stores."""

    def __init__(self, sites: SimulatedClients, client: int) -> None:
        self.clients = sites
        self.client = client

    def before(self, round: int) -> Stamped | None:
        return state_before(round, self.clients.kept.get(self.client), self.clients.former.get(self.client))

    def keep(self, stamped: Stamped) -> None:
        sites, client = self.clients, self.client
        latest, before = sites.kept.get(client), self.before(stamped.round)
        if before is not None:
            sites.former[client] = before
        if latest is None or latest.state is not stamped.state:
            sites.changed.add(client)
        sites.kept[client] = stamped

    def lacks(self, digests: Sequence[str]) -> tuple[str, ...]:
        held = self.clients.held.get(self.client, ())
        return tuple(digest for digest in digests if digest not in held)

    def receive(self, parcel: ModelParcel) -> None:  # its digest alone: a simulation holds each model once
        self.clients.held[self.client] = (*self.clients.held.get(self.client, ()), parcel.digest)

    def model(self, digest: str) -> ModelState:
        return self.clients.models[digest]

    def use(self, digests: Sequence[str]) -> None:
        held = self.clients.held.get(self.client, ())
        self.clients.held[self.client] = tuple(dict.fromkeys((*digests, *held)))[: max(MODELS_HELD, len(digests))]
