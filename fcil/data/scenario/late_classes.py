"""Classes that belong to no task: each comes in a round of its own, to everybody or to named clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fcil.core.errors import ConfigError
from fcil.core.settings_table import SettingsTable
from fcil.data.scenario.partition import Division
from fcil.data.scenario.population import Population

Number = Annotated[int, Field(ge=0)]
Deal = Callable[[int, NDArray[np.int64]], Division]  # a class and its owners -> who gets which of its samples


class Arrival(SettingsTable):
    """Some classes come at the start of a round, outside all tasks."""

    round: int = Field(ge=1, description="round in which they arrive, from 1")
    classes: tuple[Number, ...] = Field(min_length=1, description="labels of the classes")
    clients: tuple[Number, ...] | None = Field(
        None, min_length=1, description="numbers of the clients that get them; all that are present if absent"
    )

    @property
    def index(self) -> int:
        """Return the round counted from 0."""
        return self.round - 1


class LateClasses:
    """The distribution of late classes over clients and rounds; it follows from configuration and seed.

    `deal` says how the samples of a class are divided among its owners; without it every owner gets all of them.
    """

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        population: Population,
        samples: Sequence[NDArray[np.int64]],
        deal: Deal | None,
    ) -> None:
        self._samples = samples
        self._deal = deal
        self._divisions: dict[int, Division] = {}
        self._holders: dict[int, NDArray[np.int64]] = {}
        self.rounds: dict[int, int] = {}  # class -> the round in which it comes, from 0
        self._owners: dict[int, NDArray[np.int64]] = {}
        for arrival in sorted(arrivals, key=lambda arrival: arrival.round):
            present = population.active(arrival.index)
            named = present if arrival.clients is None else np.unique(np.array(arrival.clients, dtype=np.int64))
            for label in arrival.classes:
                self.rounds[label] = arrival.index
                self._owners[label] = named

    def classes(self, first: int, last: int) -> tuple[int, ...]:
        """Return the classes that come in these rounds, both included, in the order of their coming."""
        return tuple(label for label, context in self.rounds.items() if first <= context <= last)

    def holders(self, label: int) -> NDArray[np.int64]:
        """Return the clients that are given samples of a class, ascending."""
        if label not in self._holders:
            if self._deal is None:
                held = self._owners[label][: None if len(self._samples[label]) else 0]
            else:
                division = self._division(label)
                held = division.owners[np.diff(division.cuts) > 0]
            self._holders[label] = held
        return self._holders[label]

    def receivers(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the clients that are given samples of any class in these rounds, ascending."""
        found = [self.holders(label) for label in self.classes(first, last)]
        return np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)

    def given(self, client: int, first: int, last: int) -> list[NDArray[np.int64]]:
        """Return a client's late samples in these rounds, class by class, without empty classes."""
        labels = [label for label in self.classes(first, last) if client in self.holders(label)]
        if self._deal is None:
            return [self._samples[label] for label in labels]
        return [self._division(label).part(client) for label in labels]

    def _division(self, label: int) -> Division:
        assert self._deal is not None
        if label not in self._divisions:
            self._divisions[label] = self._deal(label, self._owners[label])
        return self._divisions[label]


def late_labels(arrivals: Sequence[Arrival], classes: int, order: str | Sequence[int]) -> set[int]:
    """Return the classes that belong to no task; unknown or repeated ones are refused."""
    labels: set[int] = set()
    for label in [label for arrival in arrivals for label in arrival.classes]:
        if label >= classes:
            raise ConfigError(f"scenario.arrivals: class {label} does not exist; the classes are 0 to {classes - 1}")
        if label in labels:
            raise ConfigError(f"scenario.arrivals: class {label} is named twice; it can come only once")
        if not isinstance(order, str) and label in order:
            raise ConfigError(
                f"scenario.arrivals: class {label} is also in scenario.class_order; "
                "a class of the tasks cannot come a second time, so name it in one of the two"
            )
        labels.add(label)
    if len(labels) == classes:
        raise ConfigError(f"scenario.arrivals: all {classes} classes come late; at least one should be left to a task")
    return labels


def check_arrivals(arrivals: Sequence[Arrival], population: Population, rounds: int) -> None:
    """Refuse an arrival in a round that never comes, or for a client that is not there in its round."""
    clients = len(population.joined)
    for arrival in arrivals:
        if arrival.round > rounds:
            raise ConfigError(f"scenario.arrivals: round {arrival.round} is out of range (1 to {rounds})")
        for client in arrival.clients or ():
            if client >= clients:
                raise ConfigError(
                    f"scenario.arrivals: client {client} never exists; the clients are 0 to {clients - 1}"
                )
            if population.joined[client] > arrival.index:
                when = f"it joins in round {population.joined[client] + 1}"
            elif population.left[client] <= arrival.index:
                when = f"it leaves in round {population.left[client] + 1}"
            else:
                continue
            raise ConfigError(
                f"scenario.arrivals: client {client} is not there in round {arrival.round}: {when}; "
                "name clients that are (`fcil data` shows who is there when)"
            )
