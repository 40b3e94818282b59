"""The scenario: who holds which samples in which round, as a pure function of configuration and seed.

Asking for round 57 directly gives what walking there gives. Nothing in here reaches a client or a method but the
samples a client holds; tasks and groups are for the simulation and for measuring it.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fcil.data.orders import class_order
from fcil.data.partition import Division, divide, draw_owners, settle_orphans
from fcil.data.population import MOST_CLIENTS, Event, build_population, draw_participants
from fcil.errors import ConfigError
from fcil.section import Section
from fcil.wire import derive_seed

Group: TypeAlias = Literal["S_o", "S_b", "S_n"]
HOLDING_BYTES = 256 << 20  # index lists in the cache


class ScenarioConfig(Section):
    """Who holds what when; the defaults are CIFAR-100 with ten tasks as published, in the classes' natural order."""

    tasks: int | tuple[int, ...] = Field(
        10, description="number of tasks of equal size, or a list with the number of classes of each task"
    )
    class_order: str | tuple[int, ...] = Field(
        "natural", description="order in which classes arrive: natural, icarl, shuffle-1993 or a list of labels"
    )
    rounds_per_task: int = Field(10, ge=1, le=1_000_000, description="global rounds per task")
    class_fraction: float = Field(0.6, gt=0, le=1, description="share of a task's classes that a client owns")
    split: Literal["shared", "disjoint"] = Field(
        "shared",
        description="shared: every owner of a class holds all its samples; disjoint: each sample has one owner",
    )
    concentration: float | None = Field(
        None, gt=0, description="Dirichlet parameter of a disjoint split; equal shares if absent"
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


class Scenario:
    """Tasks, population, groups and holdings of one seed."""

    def __init__(self, config: ScenarioConfig, labels: Tensor, classes: int, seed: int) -> None:
        self.config = config
        self.seed = seed
        self.tasks = _split_tasks(config, classes)
        self.rounds = len(self.tasks) * config.rounds_per_task
        _check(config, self.rounds)
        transitions = [task * config.rounds_per_task for task in range(1, len(self.tasks))]
        joins = [Event(round=start, clients=config.joiners) for start in transitions if config.joiners]
        leaves = [Event(round=start, clients=config.leavers) for start in transitions if config.leavers]
        self.population = build_population(
            config.initial_clients, [*joins, *config.joins], [*leaves, *config.leaves], seed
        )
        self._samples = _samples_by_class(labels, classes)
        self._owners: dict[int, NDArray[np.bool_]] = {}
        self._held: dict[int, NDArray[np.bool_]] = {}
        self._divisions: dict[int, Division] = {}
        self._retired: OrderedDict[tuple[int, int], frozenset[int]] = OrderedDict()
        self._holdings: OrderedDict[tuple[int, int], Tensor] = OrderedDict()
        self._holding_bytes = 0

    def task(self, round: int) -> int:
        """Return the task of a round, from 0."""
        return round // self.config.rounds_per_task

    def start(self, task: int) -> int:
        """Return the first round of a task."""
        return task * self.config.rounds_per_task

    def ends_task(self, round: int) -> bool:
        """Say whether a task ends with this round."""
        return (round + 1) % self.config.rounds_per_task == 0

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
        return "S_o" if client in self._without_new_data(round) else "S_b"

    def holding(self, round: int, client: int) -> Tensor:
        """Return the samples the client holds as its current data in a round; none for S_o."""
        task = self.task(round)
        if self.group(round, client) != "S_o":
            return self._arrival(task, client)
        if self.config.retired_data == "keep":
            for earlier in range(round - 1, int(self.population.joined[client]) - 1, -1):
                if self.group(earlier, client) != "S_o":
                    return self._arrival(self.task(earlier), client)
        return torch.empty(0, dtype=torch.int64)

    def new_classes(self, round: int, client: int) -> bool:
        """Say whether classes the client never held arrive in this round: the ground truth for detectors."""
        if self.group(round, client) == "S_o" or len(self.holding(round, client)) == 0:
            return False
        first = max(self.start(self.task(round)), int(self.population.joined[client]))
        return all(self.group(earlier, client) == "S_o" for earlier in range(first, round))

    def arrivals(self, round: int) -> list[int]:
        """Return the clients for whom `new_classes` holds, ascending."""
        present = self.population.active(round)
        if self.config.groups == "each-round":
            return [client for client in present.tolist() if self.new_classes(round, client)]
        task = self.task(round)
        first = np.maximum(self.population.joined[present], self.start(task))
        coming = self._with_data(round, present[first == round])
        return [client for client in coming.tolist() if self._task_held(task)[client].any()]

    def announcers(self, round: int) -> list[int]:
        """Return the clients that can have a class to announce: nobody else holds what it did not hold before."""
        return self.arrivals(round)

    def classes_held(self, round: int) -> set[int]:
        """Return the classes that the round's task has brought to somebody present, as far as they have samples."""
        task, present = self.task(round), self.population.active(round)
        found = self._task_held(task)[self._with_data(round, present)].any(0)
        return {self.tasks[task][column] for column in np.flatnonzero(found).tolist()}

    def holders(self, round: int, clients: list[int]) -> NDArray[np.bool_]:
        """Say for each of the clients whether the round's task has samples for it."""
        return np.asarray(self._task_held(self.task(round))[clients].any(1))

    def group_sizes(self, round: int) -> dict[str, int]:
        """Return how many of the present clients each group has."""
        present = self.population.active(round)
        start = self.start(self.task(round))
        new = len(present) if start == 0 else int((self.population.joined[present] >= start).sum())
        with_data = len(self._with_data(round, present))
        return {"S_o": len(present) - with_data, "S_b": with_data - new, "S_n": new}

    def _with_data(self, round: int, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of the clients that are not in S_o."""
        if self.start(self.task(round)) == 0:
            return clients
        retired = np.fromiter(self._without_new_data(round), np.int64)
        return clients[~np.isin(clients, retired)]

    def _without_new_data(self, round: int) -> frozenset[int]:
        """Return the members of S_o, drawn once a transition or anew each round."""
        start = self.start(self.task(round))
        moment = round if self.config.groups == "each-round" else start
        key = (moment, start)
        if key not in self._retired:
            present = self.population.active(moment)
            existing = present[self.population.joined[present] < start]
            count = len(existing) - int(np.floor(len(existing) * self.config.both_share + 0.5))
            random = np.random.default_rng(derive_seed(self.seed, "groups", moment))
            self._retired[key] = frozenset(random.permutation(existing)[:count].tolist())
            if len(self._retired) > 1024:
                self._retired.popitem(last=False)
        return self._retired[key]

    def _task_owners(self, task: int) -> NDArray[np.bool_]:
        """Return the table (clients, classes of the task) of who owns what, an owner present for every class."""
        if task not in self._owners:
            start = self.start(task)
            random = np.random.default_rng(derive_seed(self.seed, "owners", task))
            drawn = draw_owners(len(self.population.joined), len(self.tasks[task]), self.config.class_fraction, random)
            present = self.population.active(start)
            if self.config.groups == "per-transition":
                out = [client for client in present if self.group(start, client) == "S_o"]
                drawn[out] = False
                present = np.setdiff1d(present, np.array(out, dtype=np.int64))
            gone = (self.population.left <= start) | (self.population.joined >= self.start(task + 1))
            drawn[gone] = False
            self._owners[task] = settle_orphans(drawn, present)
        return self._owners[task]

    def _arrival(self, task: int, client: int) -> Tensor:
        """Return the samples that a task brings to a client that gets its data."""
        key = (task, client)
        if key not in self._holdings:
            owners = self._task_owners(task)
            parts = [self._part(task, column, client) for column in np.flatnonzero(owners[client]).tolist()]
            joined = np.sort(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)
            self._holdings[key] = torch.from_numpy(joined)
            self._holding_bytes += joined.nbytes
            while self._holding_bytes > HOLDING_BYTES and len(self._holdings) > 1:
                _, dropped = self._holdings.popitem(last=False)
                self._holding_bytes -= dropped.nbytes
        return self._holdings[key]

    def _part(self, task: int, column: int, client: int) -> NDArray[np.int64]:
        if self.config.split == "shared":
            return self._samples[self.tasks[task][column]]
        return self._division(task, column).part(client)

    def _division(self, task: int, column: int) -> Division:
        """Return how the samples of a class are divided among its owners."""
        label = self.tasks[task][column]
        if label not in self._divisions:
            holders = np.flatnonzero(self._task_owners(task)[:, column])
            random = np.random.default_rng(derive_seed(self.seed, "division", label))
            self._divisions[label] = divide(self._samples[label], holders, self.config.concentration, random)
        return self._divisions[label]

    def _task_held(self, task: int) -> NDArray[np.bool_]:
        """Return the owners' table, without those who own a class but were given none of its samples."""
        if task not in self._held:
            held = self._task_owners(task).copy()
            for column, label in enumerate(self.tasks[task]):
                if self.config.split == "disjoint" and held[:, column].any():
                    division = self._division(task, column)
                    held[division.owners[np.diff(division.cuts) == 0], column] = False
                elif len(self._samples[label]) == 0:
                    held[:, column] = False
            self._held[task] = held
        return self._held[task]


def _check(config: ScenarioConfig, rounds: int) -> None:
    """Refuse settings that would be ignored without a word."""
    for key, events in (("joins", config.joins), ("leaves", config.leaves)):
        late = [event.round for event in events if event.round >= rounds]
        if late:
            raise ConfigError(f"scenario.{key}: round {late[0]} never comes; the rounds are 0 to {rounds - 1}")
    if config.concentration is not None and config.split == "shared":
        raise ConfigError("scenario.concentration: it divides samples, so scenario.split should be disjoint")


def _split_tasks(config: ScenarioConfig, classes: int) -> tuple[tuple[int, ...], ...]:
    order = class_order(config.class_order, classes)
    strange = sorted({label for label in order if not 0 <= label < classes})
    if strange or len(set(order)) != len(order):
        problem = f"class {strange[0]} does not exist" if strange else "a class is named twice"
        raise ConfigError(f"scenario.class_order: {problem}; name each of the classes 0 to {classes - 1} at most once")
    if isinstance(config.tasks, int):
        if not 1 <= config.tasks <= len(order):
            raise ConfigError(f"scenario.tasks: {config.tasks} tasks for {len(order)} classes; use 1 to {len(order)}")
        sizes = [len(part) for part in np.array_split(np.arange(len(order)), config.tasks)]
    else:
        sizes = list(config.tasks)
        if not sizes or min(sizes) < 1 or sum(sizes) > len(order):
            raise ConfigError(
                f"scenario.tasks: sizes {sizes} for {len(order)} classes; each at least 1, together at most that"
            )
    bounds = np.cumsum([0, *sizes]).tolist()
    return tuple(order[low:high] for low, high in pairwise(bounds))


def _samples_by_class(labels: Tensor, classes: int) -> list[NDArray[np.int64]]:
    values = labels.numpy()
    sorted_samples = values.argsort(kind="stable")
    bounds = np.searchsorted(values[sorted_samples], np.arange(classes + 1))
    return [sorted_samples[low:high] for low, high in pairwise(bounds)]
