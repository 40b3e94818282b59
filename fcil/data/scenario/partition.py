"""Which client owns which classes of a task, and which of their samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Division:
    """The samples of one class in the order they were dealt, and where each owner's part begins and ends."""

    samples: NDArray[np.int64]
    owners: NDArray[np.int64]  # ascending
    cuts: NDArray[np.int64]  # one more than there are owners

    def part(self, owner: int) -> NDArray[np.int64]:
        """Return the samples of one owner."""
        place = int(np.searchsorted(self.owners, owner))
        return self.samples[self.cuts[place] : self.cuts[place + 1]]


def divide(
    samples: NDArray[np.int64], owners: NDArray[np.int64], concentration: float | None, random: np.random.Generator
) -> Division:
    """Return the samples of one class cut into one disjoint part an owner: equal, or by a Dirichlet draw."""
    shuffled = random.permutation(samples)
    if concentration is None:
        each, longer = divmod(len(samples), len(owners))
        sizes = np.full(len(owners), each, dtype=np.int64)
        sizes[:longer] += 1
        cuts = np.cumsum(sizes)
    else:
        shares = random.dirichlet([concentration] * len(owners))
        cuts = np.floor(np.cumsum(shares) * len(samples) + 0.5).astype(np.int64)
        cuts[-1] = len(samples)
    return Division(shuffled, owners, np.concatenate([[0], cuts]))
