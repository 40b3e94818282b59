"""A round as a site begins it: it is answered for one model, and trained on once."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import replace

from fcil.core.errors import FederationError
from fcil.core.messages import Broadcast, Order, encode
from fcil.deployment.party_store import BegunRound

NONCE = 62  # bits of an answer's nonce
NONE: Mapping[str, str] = {}


def begun_round(
    broadcast: Broadcast, order: Order, known: BegunRound | None, session: str = "", retired: Mapping[str, str] = NONE
) -> BegunRound:
    """Return a round as it is begun; one that was begun before must have the same model, order and masked round.

    With other retired classes it would be another order: the same noise around other samples cancels.

    A site that has looked on may still be asked to train, and one that has trained to look on: a server that repeats a
    failed round may draw other participants. Its order and its nonce stay.
    """
    context, number = broadcast.context, broadcast.context.round + 1
    away = "".join(f"\n{name} {into}" for name, into in sorted(retired.items()))
    begun = BegunRound(
        context.round,
        broadcast.model,
        context.classes,
        catalogue_digest(context.catalogue),
        context.blocks,
        context.rounds_since_growth,
        hashlib.sha256(encode(broadcast) + encode(order) + away.encode()).hexdigest() if order.participate else "",
        secrets.randbits(NONCE) + 1,
        session if order.participate else "",
    )
    if known is None:
        return begun
    if replace(begun, task=known.task, nonce=known.nonce, session=known.session) != known:
        raise FederationError(f"round {number} was begun with another model; a site answers a round for one model")
    if known.task and begun.task not in ("", known.task):
        raise FederationError(f"round {number} was begun with another order; a site trains once in a round")
    if known.task and begun.task and begun.session != known.session:
        raise FederationError(f"round {number} was masked with other partners; a site reports once in a round")
    return known if known.task else begun


def catalogue_digest(ids: tuple[str, ...]) -> str:
    """Return a name for a list of class ids."""
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()
