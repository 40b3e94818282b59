"""Bytes on the wire: a model is sent once to each client, and by digest to a client that has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fcil.wire import Broadcast, Message, ModelParcel, Reply, Shape, encoded_size

MODELS_HELD = 3  # models a site keeps by digest
NONE = -1
NOBODY = torch.empty(0, MODELS_HELD, dtype=torch.int32)


@dataclass(frozen=True)
class Ledger(Message):
    """Which models each client has, newest first: one row per client, of positions in the list of digests.

    A table and not a dict, so that a round costs the same handful of array operations for ten clients or ten thousand.
    """

    digests: tuple[str, ...] = ()
    held: Annotated[Tensor, Shape(("clients", MODELS_HELD), torch.int32)] = NOBODY

    def of(self, client: int) -> tuple[str, ...]:
        """Return the digests a client has, newest first."""
        row = self.held[client].tolist() if client < len(self.held) else []
        return tuple(self.digests[place] for place in row if place != NONE)


@dataclass(frozen=True)
class Traffic:
    """The bytes of a round, and which models each client holds after it."""

    down: int
    up: int
    ledger: Ledger


def count(
    broadcast: Broadcast, participants: set[int], clients: Sequence[int], replies: list[Reply], ledger: Ledger
) -> Traffic:
    """Return the traffic of a round: the global model to all it asks, the extras to participants, answers back."""
    sizes = {digest: encoded_size(ModelParcel(digest, model)) for digest, model in broadcast.models.items()}
    digests = list(dict.fromkeys([*ledger.digests, *sizes]))
    held = np.full((max(len(ledger.held), max(clients, default=-1) + 1), MODELS_HELD), NONE, dtype=np.int32)
    held[: len(ledger.held)] = ledger.held.numpy()
    bare = replace(broadcast, models={})
    down = 0
    for extras in (False, True):
        rows = np.array([client for client in clients if (client in participants) == extras], dtype=np.int64)
        takes = [broadcast.model, *(digest for digest in sizes if extras and digest != broadcast.model)]
        letter = bare if extras else replace(bare, server=None, proxy=None)
        down += len(rows) * encoded_size(letter)
        before = held[rows]
        for digest in takes:
            down += int((before != digests.index(digest)).all(1).sum()) * sizes[digest]
        for digest in reversed(takes):
            held[rows] = _put_first(held[rows], digests.index(digest))
    return Traffic(down, sum(_upload(reply) for reply in replies), _compact(digests, held))


def _put_first(rows: NDArray[np.int32], model: int) -> NDArray[np.int32]:
    """Return the rows with the model at the front; it leaves its former place, or else the last one falls out."""
    kept = np.where((rows == model).cumsum(1)[:, :-1] > 0, rows[:, 1:], rows[:, :-1])
    return np.concatenate([np.full((len(rows), 1), model, dtype=np.int32), kept], axis=1)


def _compact(digests: list[str], held: NDArray[np.int32]) -> Ledger:
    """Return the ledger without the digests that nobody has any more."""
    used = np.unique(held[held != NONE])
    places = np.full(len(digests) + 1, NONE, dtype=np.int32)  # the last entry, at -1, is none
    places[used] = np.arange(len(used), dtype=np.int32)
    return Ledger(tuple(digests[place] for place in used.tolist()), torch.from_numpy(places[held]))


def _upload(reply: Reply) -> int:
    parts: list[Message] = [*reply.uploads, *([reply.report] if reply.report else [])]
    if reply.announced:
        parts.append(Reply(reply.client, announced=reply.announced))
    return sum(encoded_size(part) for part in parts)
