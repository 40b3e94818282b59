"""Who is in the federation when: initial clients, joiners and leavers, at transitions or at any round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fcil.errors import ConfigError
from fcil.section import Section
from fcil.wire import derive_seed

FOREVER = np.iinfo(np.int64).max


class Event(Section):
    """Some clients come or go at the start of a round."""

    round: int = Field(ge=0, description="round at whose start it happens, from 0")
    clients: int = Field(ge=1, description="how many clients")


@dataclass(frozen=True)
class Population:
    """For each client, in order of joining, its first round and the first round without it."""

    joined: NDArray[np.int64]
    left: NDArray[np.int64]

    def active(self, round: int) -> NDArray[np.int64]:
        """Return the numbers of the clients that are there in a round, ascending."""
        return np.flatnonzero((self.joined <= round) & (round < self.left))


def build_population(initial: int, joins: list[Event], leaves: list[Event], seed: int) -> Population:
    """Return the population over all rounds; who leaves is drawn from those present before the round's joiners."""
    joined = [0] * initial
    left = [FOREVER] * initial
    for moment in sorted({event.round for event in (*joins, *leaves)}):
        leaving = sum(event.clients for event in leaves if event.round == moment)
        present = [client for client in range(len(joined)) if joined[client] < max(moment, 1) and left[client] > moment]
        if leaving > len(present):
            raise ConfigError(
                f"scenario.leavers, scenario.leaves: {leaving} clients leave at round {moment}, "
                f"only {len(present)} are there"
            )
        random = np.random.default_rng(derive_seed(seed, "leavers", moment))
        for client in random.permutation(present)[:leaving].tolist() if leaving else ():
            left[client] = moment
        coming = sum(event.clients for event in joins if event.round == moment)
        joined += [moment] * coming
        left += [FOREVER] * coming
    return Population(np.array(joined, dtype=np.int64), np.array(left, dtype=np.int64))


def draw_participants(present: Sequence[int] | NDArray[np.int64], count: int, seed: int) -> list[int]:
    """Return `count` of the clients that are there, drawn at random, ascending; all of them if there are fewer."""
    random = np.random.default_rng(seed)
    count = min(count, len(present))
    return sorted(random.choice(np.asarray(present), count, replace=False).tolist()) if count else []
