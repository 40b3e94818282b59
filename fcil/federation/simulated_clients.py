"""All clients of a simulation: each has a store of its own, and all stores are in this process."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fcil.core.errors import FederationError
from fcil.core.messages import (
    Announcement,
    Diagnostics,
    Failure,
    Message,
    Missing,
    ModelParcel,
    Order,
    Reply,
    Shape,
    Stream,
)
from fcil.federation.client import MODELS_HELD, Client, Done, Job, RoundData, Stamped, state_before

if TYPE_CHECKING:
    from fcil.data.samples import Samples
    from fcil.federation.masking.messages import Masks
    from fcil.federation.traffic import RoundTraffic
    from fcil.methods.base import ClientRole

NONE = -1


class DataSchedule(Protocol):
    """The data of every client in every round; a `Scenario` is one."""

    def holding(self, round: int, client: int) -> Tensor:
        """Return the indices of the samples that a client holds in a round."""
        ...

    def new_classes(self, round: int, client: int) -> bool:
        """Return whether a client has new classes in a round."""
        ...


@dataclass(frozen=True)
class ClientsTable(Message):
    """All that clients keep beside their states, a row per client: stamp, entropy (NaN: none) and models held."""

    digests: tuple[str, ...]
    clients: Annotated[Tensor, Shape(("clients",), torch.int64)]
    rounds: Annotated[Tensor, Shape(("clients",), torch.int64)]
    entropy: Annotated[Tensor, Shape(("clients",), torch.float64)]
    held: Annotated[Tensor, Shape(("clients", "models"), torch.int32)]  # positions in digests, newest first

    def __post_init__(self) -> None:
        if bool(((self.held < NONE) | (self.held >= len(self.digests))).any()):
            raise ValueError("a client holds a model that has no digest")


class SimulatedClients:
    """The stores of all simulated clients, by number; a client that was never seen takes no room.

    `changed` names the clients whose state is not the one it was when `changed` was last emptied.
    """

    def __init__(self, role: ClientRole[Any], seeds: Stream, schedule: DataSchedule, samples: Samples) -> None:
        self.role = role
        self.seeds = seeds
        self.schedule = schedule
        self.samples = samples
        self.kept: dict[int, Stamped] = {}
        self.former: dict[int, Stamped] = {}
        self.held: dict[int, tuple[str, ...]] = {}
        self.diagnostics: dict[int, Diagnostics] = {}  # of the round under way
        self.seconds: dict[str, float] = {}  # of the round under way, by phase
        self.changed: set[int] = set()
        self.masks: dict[int, Masks] = {}  # of the round under way, where reports are masked

    def client(self, number: int) -> Client:
        """Return one client, on its own part of the stores."""
        return Client(number, self.role, SimulatedStore(self, number), self.seeds)

    def data(self, round: int, client: int) -> RoundData:
        """Return the data of a client in a round."""
        truth = self.schedule.new_classes(round, client) if self.role.wants_truth else None
        return RoundData(self.schedule.holding(round, client), truth)

    def announce(self, round: int, clients: Iterable[int], catalogue: Sequence[str]) -> list[Announcement]:
        """Return the announcements of these clients at the start of a round."""
        return [self.client(client).announce(self.data(round, client), self.samples, catalogue) for client in clients]

    def deliver(self, traffic: RoundTraffic, order: Order) -> Client:
        """Send a client its order, the broadcast and the models that it lacks."""
        client, broadcast = self.client(order.client), traffic.broadcast_to(order)
        traffic.sent(order)
        missing = client.missing(broadcast, order)
        if missing:
            for parcel in traffic.parcels(Missing(missing)):
                client.store.receive(parcel)
        unknown = client.missing(broadcast, order)
        if unknown:
            raise FederationError(f"client {order.client} asks for models that the round does not name: {unknown}")
        return client

    def prepare(self, traffic: RoundTraffic, order: Order) -> Job:
        """Send a client its order and return the job that it makes of it."""
        data = self.data(traffic.broadcast.context.round, order.client)
        job = self.deliver(traffic, order).prepare(traffic.broadcast_to(order), order, data)
        masks = self.masks.get(order.client) if order.participate else None
        return job if masks is None else replace(job, masks=masks)

    def finish(self, traffic: RoundTraffic, job: Job, done: Done) -> Reply | Failure:
        """Let a client keep the state that its job left, note the diagnostics of a simulation, and return its reply."""
        client = job.order.client
        if done.diagnostics is not None:
            self.diagnostics[client] = done.diagnostics
        for phase, seconds in done.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
        answer = self.client(client).finish(traffic.broadcast.context.round, job, done)
        if isinstance(answer, Reply):
            traffic.answered(answer)
        return answer

    def states(self) -> dict[int, Message]:
        """Return the states of all clients seen so far."""
        return {client: kept.state for client, kept in self.kept.items()}

    def table(self) -> ClientsTable:
        """Return all that clients keep beside their states."""
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
        """Restore the clients from a checkpoint: the latest state of each, and none from before."""
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

    def __init__(self, clients: SimulatedClients, client: int) -> None:
        self.clients = clients
        self.client = client

    def before(self, round: int) -> Stamped | None:
        return state_before(round, self.clients.kept.get(self.client), self.clients.former.get(self.client))

    def keep(self, stamped: Stamped) -> None:
        clients, client = self.clients, self.client
        latest, before = clients.kept.get(client), self.before(stamped.round)
        if before is not None:
            clients.former[client] = before
        if latest is None or latest.state is not stamped.state:
            clients.changed.add(client)
        clients.kept[client] = stamped

    def lacks(self, digests: Sequence[str]) -> tuple[str, ...]:
        held = self.clients.held.get(self.client, ())
        return tuple(digest for digest in digests if digest not in held)

    def receive(self, parcel: ModelParcel) -> None:  # its digest alone: a simulation holds each model once
        self.clients.held[self.client] = (*self.clients.held.get(self.client, ()), parcel.digest)

    def use(self, digests: Sequence[str]) -> None:
        held = self.clients.held.get(self.client, ())
        self.clients.held[self.client] = tuple(dict.fromkeys((*digests, *held)))[: max(MODELS_HELD, len(digests))]
