"""The population of the federation: initial clients, joiners and leavers, at transitions or at any round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fcil.core.errors import ConfigError
from fcil.core.messages import derive_seed
from fcil.core.settings_table import SettingsTable

FOREVER = np.iinfo(np.int64).max
MOST_CLIENTS = 1_000_000  # over a whole run; tables with a row per client must fit into memory


class Event(SettingsTable):
    """Some clients come or go at the start of a round."""

    round: int = Field(ge=1, description="round at whose start it happens, from 1")
    clients: int = Field(ge=1, le=MOST_CLIENTS, description="how many clients")

    @property
    def index(self) -> int:
        """Return the round counted from 0."""
        return self.round - 1


@dataclass(frozen=True)
class Population:
    """For each client, in order of joining, its first round and the first round without it, counted from 0."""

    joined: NDArray[np.int64]
    left: NDArray[np.int64]

    def active(self, round: int) -> NDArray[np.int64]:
        """Return the numbers of the clients that are there in a round, ascending."""
        return np.flatnonzero((self.joined <= round) & (round < self.left))


def build_population(initial: int, joins: list[Event], leaves: list[Event], seed: int) -> Population:
    """Return the population over all rounds; leavers are drawn from the clients present before the round's joiners."""
    total = initial + sum(event.clients for event in joins)
    if total > MOST_CLIENTS:
        raise ConfigError(
            "scenario.initial_clients, scenario.joiners, scenario.joins: "
            f"found {total} clients in all, should be at most {MOST_CLIENTS}"
        )
    joined = np.zeros(total, dtype=np.int64)
    left = np.full(total, FOREVER)
    known = initial  # who joins has the next number
    for number in sorted({event.index for event in (*joins, *leaves)}):
        leaving = sum(event.clients for event in leaves if event.index == number)
        coming = sum(event.clients for event in joins if event.index == number)
        present = np.flatnonzero(left[:known] > number)
        if leaving > len(present):
            raise ConfigError(
                f"scenario.leavers, scenario.leaves: {leaving} clients leave at round {number + 1}, "
                f"only {len(present)} are there"
            )
        if leaving == len(present) and coming == 0:
            raise ConfigError(
                f"scenario.leavers, scenario.leaves: all {leaving} clients leave at round {number + 1} and none joins; "
                "at least one should be left"
            )
        if leaving:
            random = np.random.default_rng(derive_seed(seed, "leavers", number))
            left[random.permutation(present)[:leaving]] = number
        joined[known : known + coming] = number
        known += coming
    return Population(joined, left)


def draw_participants(present: Sequence[int], count: int, seed: int) -> list[int]:
    """Return `count` of the clients that are there, drawn at random, ascending; all of them if there are fewer.

    Positions are drawn, not numbers: a client's number may be larger than an array can hold.
    """
    count = min(count, len(present))
    drawn = np.random.default_rng(seed).choice(len(present), count, replace=False).tolist() if count else []
    return sorted(present[position] for position in drawn)
