"""Which client owns which classes of a task, and which of their samples."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def draw_owners(clients: int, classes: int, fraction: float, random: np.random.Generator) -> NDArray[np.bool_]:
    """Return a table (clients, classes): each client owns the fraction of the classes, rounded up, at random."""
    each = math.ceil(round(fraction * classes, 9))
    ranks = random.random((clients, classes)).argsort(1).argsort(1)
    return np.asarray(ranks < each)


def settle_orphans(owners: NDArray[np.bool_], present: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the table with an owner among the present rows for every class.

    A class that nobody present owns goes to the present clients in turn, in exchange for a class of which others are
    left; where there is none to exchange, it comes on top.
    """
    settled = owners.copy()
    if len(present) == 0:
        return settled
    orphans = np.flatnonzero(~settled[present].any(0)).tolist()
    for turn, orphan in enumerate(orphans):
        client = present[turn % len(present)]
        spare = np.flatnonzero(settled[client] & (settled[present].sum(0) > 1))
        if len(spare):
            settled[client, spare[0]] = False
        settled[client, orphan] = True
    return settled


def divide(
    samples: NDArray[np.int64], owners: int, concentration: float | None, random: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Return the samples of one class cut into one disjoint part an owner: equal, or by a Dirichlet draw."""
    shuffled = random.permutation(samples)
    if concentration is None:
        return list(np.array_split(shuffled, owners))
    shares = random.dirichlet([concentration] * owners)
    cuts = np.floor(np.cumsum(shares)[:-1] * len(samples) + 0.5).astype(np.int64)
    return list(np.split(shuffled, cuts))
