"""The partition of a task: the classes that each client owns, and its samples of them.

The partitions other than `classes` are tables (clients, classes) of numbers of samples; each column adds up to the
samples of its class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fcil.core.errors import ConfigError

Partition: TypeAlias = Literal["classes", "dirichlet", "dirichlet-balanced", "shards", "quantity", "iid"]
Counts: TypeAlias = NDArray[np.int64]
NEEDS_CONCENTRATION = frozenset({"dirichlet", "dirichlet-balanced", "quantity"})
DRAWS = 1000  # of a balanced partition, before it is given up


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


def cut(
    samples: NDArray[np.int64], clients: NDArray[np.int64], counts: Counts, random: np.random.Generator
) -> Division:
    """Return the samples of one class cut into parts of these sizes, one for each client."""
    return Division(random.permutation(samples), clients, np.concatenate([[0], np.cumsum(counts)]))


def count_dirichlet(sizes: Sequence[int], clients: int, concentration: float, random: np.random.Generator) -> Counts:
    """Return a partition in which each class has its own Dirichlet shares, and each sample draws its client by them."""
    shares = random.dirichlet([concentration] * clients, len(sizes))
    return np.stack([random.multinomial(size, share) for size, share in zip(sizes, shares, strict=True)], axis=1)


def count_balanced(sizes: Sequence[int], clients: int, concentration: float, random: np.random.Generator) -> Counts:
    """Return a Dirichlet partition in which no client gets another class once it has its even part of all samples.

    It is drawn again until no client is empty.
    """
    for _ in range(DRAWS):
        counts = np.zeros((clients, len(sizes)), dtype=np.int64)
        for column, size in enumerate(sizes):
            shares = random.dirichlet([concentration] * clients)
            room = counts.sum(1) < sum(sizes) / clients
            shares = np.where(room, shares, 0.0)
            total = shares.sum()
            counts[:, column] = _in_shares(size, shares / total if total > 0 else room / room.sum())
        if counts.sum(1).all():
            return counts
    raise ConfigError(
        f"scenario.concentration: at {concentration:g} none of {DRAWS} draws gave each of the {clients} clients a "
        "sample of a task; choose a larger one, fewer clients or scenario.partition dirichlet"
    )


def count_quantity(sizes: Sequence[int], clients: int, concentration: float, random: np.random.Generator) -> Counts:
    """Return a partition with the same mix of classes for all clients, and Dirichlet shares of the samples."""
    shares = random.dirichlet([concentration] * clients)
    return np.stack([_in_shares(size, shares) for size in sizes], axis=1)


def count_shards(sizes: Sequence[int], clients: int, each: int, random: np.random.Generator) -> Counts:
    """Return a partition of the samples sorted by class: cut into equal shards, of which each client draws `each`."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    order, shards = random.permutation(clients * each), np.array_split(labels, clients * each)
    return _counted([np.concatenate([shards[shard] for shard in mine]) for mine in np.split(order, clients)], sizes)


def count_iid(sizes: Sequence[int], clients: int, random: np.random.Generator) -> Counts:
    """Return a partition of the shuffled samples into equal parts."""
    labels = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return _counted(np.array_split(labels, clients), sizes)


def partition_counts(
    name: Partition,
    sizes: Sequence[int],
    clients: int,
    concentration: float | None,
    shards: int,
    random: np.random.Generator,
) -> Counts:
    """Return the table of a partition by name."""
    by_concentration: dict[str, Callable[[Sequence[int], int, float, np.random.Generator], Counts]] = {
        "dirichlet": count_dirichlet,
        "dirichlet-balanced": count_balanced,
        "quantity": count_quantity,
    }
    if name in by_concentration:
        assert concentration is not None
        return by_concentration[name](sizes, clients, concentration, random)
    return count_shards(sizes, clients, shards, random) if name == "shards" else count_iid(sizes, clients, random)


def _in_shares(size: int, shares: NDArray[np.float64]) -> Counts:
    """Return whole numbers in these shares that add up to a size."""
    bounds = np.floor(np.cumsum(shares) * size + 0.5).astype(np.int64)
    bounds[-1] = size
    return np.diff(np.minimum(bounds, size), prepend=0)


def _counted(parts: Sequence[NDArray[np.int64]], sizes: Sequence[int]) -> Counts:
    return np.stack([np.bincount(part, minlength=len(sizes)) for part in parts])
