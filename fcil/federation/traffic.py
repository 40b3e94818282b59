"""Bytes on the wire: models travel once to a client that lacks them, by digest to one that has them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fcil.wire import Broadcast, Message, ModelState, Reply, encoded_size

MODELS_HELD = 3  # models a site keeps by digest


@dataclass(frozen=True)
class ModelParcel(Message):
    """One model on its way to a client."""

    digest: str
    model: ModelState


@dataclass(frozen=True)
class Traffic:
    """The bytes of a round, and which models each client holds after it."""

    down: int
    up: int
    held: dict[str, tuple[str, ...]]


def count(
    broadcast: Broadcast,
    participants: set[int],
    clients: list[int],
    replies: list[Reply],
    held: dict[str, tuple[str, ...]],
) -> Traffic:
    """Return the traffic of a round: the global model to all, the extras to participants, answers back."""
    sizes = {digest: encoded_size(ModelParcel(digest, model)) for digest, model in broadcast.models.items()}
    bare = replace(broadcast, models={})
    for_participant, for_bystander = encoded_size(bare), encoded_size(replace(bare, server=None, proxy=None))
    down, now_held = 0, dict(held)
    for client in clients:
        takes = list(broadcast.models) if client in participants else [broadcast.model]
        has = held.get(str(client), ())
        down += for_participant if client in participants else for_bystander
        down += sum(sizes[digest] for digest in takes if digest not in has)
        now_held[str(client)] = tuple(dict.fromkeys([*takes, *has]))[:MODELS_HELD]
    return Traffic(down, sum(_upload(reply) for reply in replies), now_held)


def _upload(reply: Reply) -> int:
    parts: list[Message] = [*reply.uploads, *([reply.report] if reply.report else [])]
    if reply.announced:
        parts.append(Reply(reply.client, announced=reply.announced))
    return sum(encoded_size(part) for part in parts)
