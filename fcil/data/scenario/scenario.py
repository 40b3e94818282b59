"""The scenario: who holds which samples in which round, as a pure function of configuration and seed.

Asking for round 57 directly gives what walking there gives. Nothing in here reaches a client or a method but the
samples a client holds; tasks and groups are for the simulation and for measuring it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from itertools import pairwise
from typing import Annotated, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fcil.core.errors import ConfigError
from fcil.core.messages import derive_seed
from fcil.core.settings_table import SettingsTable
from fcil.data.scenario.late_classes import Arrival, LateClasses, check_arrivals, late_labels
from fcil.data.scenario.ownership import Ownership, Takers
from fcil.data.scenario.partition import NEEDS_CONCENTRATION, Partition
from fcil.data.scenario.population import MOST_CLIENTS, Event, build_population, draw_participants
from fcil.data.scenario.tasks import split_tasks, task_starts

Group: TypeAlias = Literal["S_o", "S_b", "S_n"]
Rounds: TypeAlias = Annotated[int, Field(ge=1, le=1_000_000)]
HOLDING_BYTES = 256 << 20  # index lists in the cache


class ScenarioConfig(SettingsTable):
    """The settings of a scenario; the defaults are CIFAR-100 in ten tasks as published, in the natural class order."""

    tasks: int | tuple[int, ...] = Field(
        10, description="number of tasks of equal size, or a list with the number of classes of each task"
    )
    class_order: str | tuple[int, ...] = Field(
        "natural", description="order in which classes arrive: natural, icarl, shuffle-1993 or a list of labels"
    )
    rounds_per_task: Rounds | tuple[Rounds, ...] = Field(
        10, description="global rounds per task, or a list with the rounds of each task"
    )
    arrivals: tuple[Arrival, ...] = Field(
        (), description="classes outside all tasks that come in a round of their own: {round, classes, clients}"
    )
    class_fraction: float = Field(0.6, gt=0, le=1, description="share of a task's classes that a client owns")
    partition: Partition = Field(
        "classes",
        description="who gets a task's data: classes, as the next settings say; the others give each sample one owner, "
        "see docs/protocol.md",
    )
    split: Literal["shared", "disjoint"] = Field(
        "shared",
        description="partition classes: shared: every owner of a class holds all its samples; disjoint: each sample "
        "has one owner",
    )
    concentration: float | None = Field(
        None,
        gt=0,
        description="Dirichlet parameter of a disjoint split (equal shares if absent) and of the partitions dirichlet, "
        "dirichlet-balanced and quantity",
    )
    shards: int = Field(2, ge=1, le=1000, description="partition shards: parts of a task's sorted data per client")
    shares: Literal["per-task", "fixed"] = Field(
        "per-task",
        description="partitions other than classes: shares are drawn for each task, or the first draw holds for all",
    )
    initial_clients: int = Field(30, ge=1, le=MOST_CLIENTS, description="clients in the first round")
    joiners: int = Field(10, ge=0, le=MOST_CLIENTS, description="clients that join at each transition (S_n)")
    leavers: int = Field(0, ge=0, description="clients that leave at each transition")
    joins: tuple[Event, ...] = Field((), description="further clients that join: {round, clients}")
    leaves: tuple[Event, ...] = Field((), description="further clients that leave: {round, clients}")
    both_share: float = Field(
        0.9, ge=0, le=1, description="share of existing clients with new data (S_b); the rest is S_o"
    )
    groups: Literal["per-transition", "each-round"] = Field(
        "per-transition", description="how often S_o and S_b are drawn"
    )
    retired_data: Literal["memory", "keep"] = Field(
        "memory", description="what S_o trains on: its memory, or all its former data as in the released code"
    )
    participants: int = Field(10, ge=1, description="clients that train per round")
    memory: int = Field(2000, ge=0, description="exemplars per client")

    @property
    def is_shared(self) -> bool:
        """Return whether every owner of a class holds all its samples."""
        return self.partition == "classes" and self.split == "shared"

    @property
    def task_count(self) -> int:
        """Return how many tasks there are."""
        return self.tasks if isinstance(self.tasks, int) else len(self.tasks)


class Scenario:
    """Tasks, population, groups and holdings of one seed."""

    def __init__(self, config: ScenarioConfig, labels: Tensor, classes: int, seed: int) -> None:
        self.config = config
        self.seed = seed
        late = late_labels(config.arrivals, classes, config.class_order)
        self.tasks = split_tasks(config.tasks, config.class_order, late, classes)
        self._starts = task_starts(config.rounds_per_task, len(self.tasks))
        self.rounds = self._starts[-1]
        _check(config, self.rounds)
        transitions = self._starts[1:-1]
        joins = [Event(round=start + 1, clients=config.joiners) for start in transitions if config.joiners]
        leaves = [Event(round=start + 1, clients=config.leavers) for start in transitions if config.leavers]
        self.population = build_population(
            config.initial_clients, [*joins, *config.joins], [*leaves, *config.leaves], seed
        )
        check_arrivals(config.arrivals, self.population, self.rounds)
        self._samples = _samples_by_class(labels, classes)
        self._ownership = Ownership(config, self.tasks, self._samples, seed, self._takers)
        deal = None if config.is_shared else self._ownership.deal
        self._late = LateClasses(config.arrivals, self.population, self._samples, deal)
        self._retired: OrderedDict[tuple[int, int], frozenset[int]] = OrderedDict()
        self._holdings: OrderedDict[tuple[int, int], Tensor] = OrderedDict()
        self._holding_bytes = 0

    def task(self, round: int) -> int:
        """Return the task of a round, from 0."""
        return bisect_right(self._starts, round) - 1

    def start(self, task: int) -> int:
        """Return the first round of a task; for the task after the last, the number of all rounds."""
        return self._starts[task]

    def ends_task(self, round: int) -> bool:
        """Say whether a task ends with this round."""
        return round + 1 == self._starts[self.task(round) + 1]

    def seen(self, round: int) -> list[tuple[int, ...]]:
        """Return, for each task begun, the classes that are counted as its own by this round.

        A late class belongs to the task during which it comes, from its round on.
        """
        begun = range(self.task(round) + 1)
        return [
            self.tasks[task] + self._late.classes(self.start(task), min(round, self.start(task + 1) - 1))
            for task in begun
        ]

    def clients(self, round: int) -> list[int]:
        """Return the clients that are there, ascending."""
        present: list[int] = self.population.active(round).tolist()
        return present

    def participants(self, round: int) -> list[int]:
        """Return the clients that the server will draw to train, ascending."""
        present, seed = self.clients(round), derive_seed(self.seed, "participants", round)
        return draw_participants(present, self.config.participants, seed)

    def group(self, round: int, client: int) -> Group:
        """Return the client's group: S_o without new data, S_b with new data and a history, S_n without a history."""
        start = self.start(self.task(round))
        if start == 0 or self.population.joined[client] >= start:
            return "S_n"
        idle = client in self._without_new_data(round) and not self._late.given(client, start, round)
        return "S_o" if idle else "S_b"

    def holding(self, round: int, client: int) -> Tensor:
        """Return the samples the client holds as its current data in a round; none for S_o.

        The samples of a late class are added to the task's data until the task ends.
        """
        task = self.task(round)
        if self.group(round, client) != "S_o":
            late = self._late.given(client, self.start(task), round)
            if not late:
                return self._arrival(task, client)
            own = [] if client in self._without_new_data(round) else [self._arrival(task, client).numpy()]
            return torch.from_numpy(np.sort(np.concatenate([*own, *late])))
        if self.config.retired_data == "keep":
            for earlier in range(round - 1, int(self.population.joined[client]) - 1, -1):
                if self.group(earlier, client) != "S_o":
                    return self.holding(earlier, client)
        return torch.empty(0, dtype=torch.int64)

    def new_classes(self, round: int, client: int) -> bool:
        """Say whether classes the client never held arrive in this round: the ground truth for detectors."""
        if self._late.given(client, round, round):
            return True
        task = self.task(round)
        if client in self._without_new_data(round) or len(self._arrival(task, client)) == 0:
            return False
        first = max(self.start(task), int(self.population.joined[client]))
        return all(client in self._without_new_data(earlier) for earlier in range(first, round))

    def arrivals(self, round: int) -> list[int]:
        """Return the clients for whom `new_classes` holds, ascending."""
        present = self.population.active(round)
        if self.config.groups == "each-round":
            return [client for client in present.tolist() if self.new_classes(round, client)]
        task = self.task(round)
        first = np.maximum(self.population.joined[present], self.start(task))
        coming = self._with_data(round, present[first == round])
        regular = coming[self._ownership.held(task)[coming].any(1)]
        found: list[int] = np.union1d(regular, self._late.receivers(round, round)).tolist()
        return found

    def announcers(self, round: int) -> list[int]:
        """Return the clients that can have a class to announce: only these hold new samples."""
        return self.arrivals(round)

    def classes_held(self, round: int) -> set[int]:
        """Return the classes of the round's task of which a present client has samples."""
        task, present = self.task(round), self.population.active(round)
        found = self._ownership.held(task)[self._with_data(round, present)].any(0)
        late = self._late.classes(self.start(task), round)
        still = {label for label in late if np.isin(self._late.holders(label), present).any()}
        return {self.tasks[task][column] for column in np.flatnonzero(found).tolist()} | still

    def holders(self, round: int, clients: list[int]) -> NDArray[np.bool_]:
        """Say for each of the clients whether the round's task, or a late class in it so far, has samples for it."""
        task = self.task(round)
        late = np.isin(clients, self._late.receivers(self.start(task), round))
        return np.asarray(self._ownership.held(task)[clients].any(1) | late)

    def group_sizes(self, round: int) -> dict[str, int]:
        """Return how many of the present clients each group has."""
        present = self.population.active(round)
        start = self.start(self.task(round))
        new = len(present) if start == 0 else int((self.population.joined[present] >= start).sum())
        late = np.intersect1d(present, self._late.receivers(start, round))
        with_data = len(np.union1d(self._with_data(round, present), late))
        return {"S_o": len(present) - with_data, "S_b": with_data - new, "S_n": new}

    def group_members(self, round: int, limit: int) -> dict[str, list[int]]:
        """Return the present clients of each group, of those whose number is below the limit."""
        present = self.population.active(round)
        known: dict[str, list[int]] = {"S_o": [], "S_b": [], "S_n": []}
        for client in present[present < limit].tolist():
            known[self.group(round, client)].append(client)
        return known

    def _with_data(self, round: int, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the clients that get data of the round's task."""
        if self.start(self.task(round)) == 0:
            return clients
        retired = np.fromiter(self._without_new_data(round), np.int64)
        return clients[~np.isin(clients, retired)]

    def _without_new_data(self, round: int) -> frozenset[int]:
        """Return the clients without data of the task, drawn per transition or per round: S_o but for late classes."""
        start = self.start(self.task(round))
        context = round if self.config.groups == "each-round" else start
        key = (context, start)
        if key not in self._retired:
            present = self.population.active(context)
            existing = present[self.population.joined[present] < start]
            count = len(existing) - int(np.floor(len(existing) * self.config.both_share + 0.5))
            random = np.random.default_rng(derive_seed(self.seed, "groups", context))
            self._retired[key] = frozenset(random.permutation(existing)[:count].tolist())
            if len(self._retired) > 1024:
                self._retired.popitem(last=False)
        return self._retired[key]

    def _takers(self, task: int) -> Takers:
        """Return the clients that may own data of a task: all present while it lasts, except those without new data."""
        start = self.start(task)
        present = self.population.active(start)
        eligible = (self.population.left > start) & (self.population.joined < self.start(task + 1))
        if self.config.groups == "per-transition":
            out = np.array(sorted(self._without_new_data(start)), dtype=np.int64)
            eligible[out] = False
            present = np.setdiff1d(present, out)
        return Takers(eligible, present)

    def _arrival(self, task: int, client: int) -> Tensor:
        """Return the samples that a task brings to a client that gets its data."""
        key = (task, client)
        if key not in self._holdings:
            parts = self._ownership.parts(task, client)
            joined = np.sort(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)
            self._holdings[key] = torch.from_numpy(joined)
            self._holding_bytes += joined.nbytes
            while self._holding_bytes > HOLDING_BYTES and len(self._holdings) > 1:
                _, dropped = self._holdings.popitem(last=False)
                self._holding_bytes -= dropped.nbytes
        return self._holdings[key]


def _check(config: ScenarioConfig, rounds: int) -> None:
    """Refuse settings that would be ignored without a word."""
    for key, events in (("joins", config.joins), ("leaves", config.leaves)):
        late = [event.round for event in events if event.round > rounds]
        if late:
            raise ConfigError(f"scenario.{key}: round {late[0]} is out of range (1 to {rounds})")
    _check_partition(config)


def _check_partition(config: ScenarioConfig) -> None:
    name, given = config.partition, config.concentration
    if name == "classes":
        if given is not None and config.split == "shared":
            raise ConfigError("scenario.concentration: it divides samples, so scenario.split should be disjoint")
        unused = ["shards", "shares"]
    else:
        unused = ["class_fraction"] if name == "shards" else ["class_fraction", "shards"]
        if name in NEEDS_CONCENTRATION and given is None:
            raise ConfigError(
                f"scenario.concentration: absent, should be a number above 0 for scenario.partition {name}"
            )
        if name not in NEEDS_CONCENTRATION and given is not None:
            raise ConfigError(f"scenario.concentration: found {given:g}, should be absent: {name} does not use it")
    for key in unused:
        value, default = getattr(config, key), ScenarioConfig.model_fields[key].default
        if value != default:
            raise ConfigError(
                f"scenario.{key}: found {value}, should be {default}, its default: scenario.partition {name} "
                "does not use it"
            )


def _samples_by_class(labels: Tensor, classes: int) -> list[NDArray[np.int64]]:
    values = labels.numpy()
    sorted_samples = values.argsort(kind="stable")
    bounds = np.searchsorted(values[sorted_samples], np.arange(classes + 1))
    return [sorted_samples[low:high] for low, high in pairwise(bounds)]
