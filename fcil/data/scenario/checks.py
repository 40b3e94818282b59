"""Checks a scenario before round one: errors and warnings."""

from __future__ import annotations

import numpy as np

from fcil.core.errors import ConfigError
from fcil.data.scenario.scenario import Scenario


def foresee(scenario: Scenario, min_participants: int = 1) -> list[str]:
    """Return a warning for each oddity; raise a ConfigError where the run would stop."""
    moments = _changes(scenario)
    present = {context: len(scenario.clients(context)) for context in moments}
    fewest = min(moments, key=lambda context: present[context])
    if present[fewest] < min_participants:
        raise ConfigError(
            f"federation.min_participants: found {min_participants}, should be at most {present[fewest]}, "
            f"the number of clients in round {fewest + 1}"
        )
    return [*_too_few(scenario, fewest, present[fewest]), *_without_data(scenario), *_unseen_tasks(scenario)]


def other_blocks(scenario: Scenario, epochs: int, planned: int) -> list[str]:
    """Return a warning if blocks of classes last for more or fewer local epochs than schedules are scaled to."""
    given, found = scenario.config.rounds_per_task, []
    lengths = [given] if isinstance(given, int) else list(given)
    if any(rounds * epochs != planned for rounds in lengths):
        rounds, total = (given, given * epochs) if isinstance(given, int) else (lengths, [n * epochs for n in lengths])
        wanted = f"scenario.rounds_per_task x train.epochs is {rounds} x {epochs} = {total}"
        found.append(
            f"train.block_epochs: learning rates are scheduled for blocks of {planned} local epochs, but {wanted}"
        )
    late = [arrival.index for arrival in scenario.config.arrivals]
    within = sorted(context for context in late if scenario.start(scenario.task(context)) != context)
    if within:
        found.append(
            f"scenario.arrivals: the class that comes in round {within[0] + 1} begins a block within a task, "
            f"so schedules for {planned} local epochs begin anew there"
        )
    return found


def _changes(scenario: Scenario) -> list[int]:
    """Return the rounds in which clients come or go, the first one included."""
    population = scenario.population
    moments = np.unique(np.concatenate([[0], population.joined, population.left])).tolist()
    return [context for context in moments if context < scenario.rounds]


def _too_few(scenario: Scenario, fewest: int, present: int) -> list[str]:
    wanted = scenario.config.participants
    if present >= wanted:
        return []
    clients = "one client" if present == 1 else f"{present} clients"
    return [f"scenario.participants: {wanted} should train per round, but round {fewest + 1} has only {clients}"]


def _without_data(scenario: Scenario) -> list[str]:
    """Look at the first task alone: its division is made for the first round anyway."""
    clients = scenario.clients(0)
    empty = int((~scenario.holders(0, clients)).sum())
    if not empty:
        return []
    what = f"{empty} of the {len(clients)} clients of the first round hold no data"
    key = "split" if scenario.config.partition == "classes" else "partition"
    return [f"scenario.{key}: {what}; one that is drawn to train has nothing to send"]


def _unseen_tasks(scenario: Scenario) -> list[str]:
    """Find tasks whose data no client gets: no earlier client gets new data, and none joins."""
    joined = scenario.population.joined
    for task in range(1, len(scenario.tasks)):
        first, end = scenario.start(task), scenario.start(task + 1)
        sizes = scenario.group_sizes(first)
        if sizes["S_b"] + sizes["S_n"] == 0 and not bool(((joined >= first) & (joined < end)).any()):
            share = scenario.config.both_share
            return [f"scenario.both_share: at {share} nobody gets the data of task {task + 1}, as no client joins"]
    return []
