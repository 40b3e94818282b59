"""The scenario as rows, before training: which client holds which classes and samples in each round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fcil.data.scenario.population import FOREVER
from fcil.data.scenario.scenario import Scenario

ABSENT = "absent"


@dataclass(frozen=True)
class Holding:
    """The samples of one client at one moment, by class."""

    group: str  # S_o, S_b, S_n, or absent
    samples: dict[int, int]


@dataclass(frozen=True)
class ClientRow:
    """One client: its rounds from 1, how often it is drawn to train, and its samples in each task."""

    client: int
    joins: int
    leaves: int | None  # the first round without it, if it leaves
    drawn: int  # rounds in which it trains
    holdings: tuple[Holding, ...]


@dataclass(frozen=True)
class TaskRow:
    """One task: its rounds from 1, its classes, and its late classes, each with its round."""

    first: int
    last: int
    classes: tuple[int, ...]
    late: dict[int, int]


@dataclass(frozen=True)
class HoldingsTable:
    """A whole scenario, or one round of it, which is then a task of its own.

    A holding is that of the task's last round in which the client is there.
    """

    tasks: tuple[TaskRow, ...]
    clients: tuple[ClientRow, ...]

    @property
    def columns(self) -> list[tuple[int, int]]:
        """Return (task, class) for each class, in the order of their coming."""
        return [(place, label) for place, task in enumerate(self.tasks) for label in (*task.classes, *task.late)]


def holdings_by_task(scenario: Scenario, labels: Tensor) -> HoldingsTable:
    """Return each client's samples in each task."""
    drawn = np.zeros(len(scenario.population.joined), dtype=np.int64)
    for number in range(scenario.rounds):
        drawn[scenario.participants(number)] += 1
    tasks = tuple(_task(scenario, task) for task in range(len(scenario.tasks)))
    rows = []
    for client in range(len(drawn)):
        holdings = tuple(_in_task(scenario, labels, task, client) for task in tasks)
        rows.append(_row(scenario, client, int(drawn[client]), holdings))
    return HoldingsTable(tasks, tuple(rows))


def holdings_in_round(scenario: Scenario, labels: Tensor, round: int) -> HoldingsTable:
    """Return the samples of the clients of one round, counted from 0; classes are all that have come."""
    training = set(scenario.participants(round))
    seen = tuple(label for classes in scenario.seen(round) for label in classes)
    rows = [
        _row(scenario, client, int(client in training), (_held(scenario, labels, round, client),))
        for client in scenario.clients(round)
    ]
    return HoldingsTable((TaskRow(round + 1, round + 1, seen, {}),), tuple(rows))


def _task(scenario: Scenario, task: int) -> TaskRow:
    first, last = scenario.start(task) + 1, scenario.start(task + 1)
    late = {
        label: arrival.round
        for arrival in scenario.config.arrivals
        for label in arrival.classes
        if first <= arrival.round <= last
    }
    return TaskRow(first, last, scenario.tasks[task], dict(sorted(late.items(), key=lambda item: item[1])))


def _in_task(scenario: Scenario, labels: Tensor, task: TaskRow, client: int) -> Holding:
    joined, left = int(scenario.population.joined[client]), int(scenario.population.left[client])
    first, last = task.first - 1, min(task.last, left) - 1
    if joined > last or left <= first:
        return Holding(ABSENT, {})
    return _held(scenario, labels, last, client)


def _held(scenario: Scenario, labels: Tensor, round: int, client: int) -> Holding:
    found, counts = torch.unique(labels[scenario.holding(round, client)], return_counts=True)
    return Holding(scenario.group(round, client), dict(zip(found.tolist(), counts.tolist(), strict=True)))


def _row(scenario: Scenario, client: int, drawn: int, holdings: tuple[Holding, ...]) -> ClientRow:
    left = int(scenario.population.left[client])
    leaves = None if left == FOREVER or left >= scenario.rounds else left + 1
    return ClientRow(client, int(scenario.population.joined[client]) + 1, leaves, drawn, holdings)
