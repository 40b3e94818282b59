"""Tasks: which classes each has, and when each begins."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np

from fcil.core.errors import ConfigError
from fcil.data.scenario.class_orders import class_order


def split_tasks(
    tasks: int | Sequence[int], order: str | Sequence[int], late: Collection[int], classes: int
) -> tuple[tuple[int, ...], ...]:
    """Return the classes of each task, in order; late classes belong to no task."""
    ordered = class_order(order, classes)
    strange = sorted({label for label in ordered if not 0 <= label < classes})
    if strange or len(set(ordered)) != len(ordered):
        problem = f"class {strange[0]} does not exist" if strange else "a class is named twice"
        raise ConfigError(f"scenario.class_order: {problem}; name each of the classes 0 to {classes - 1} at most once")
    left = tuple(label for label in ordered if label not in late)
    besides = f" besides the {len(late)} of scenario.arrivals" if late else ""
    if isinstance(tasks, int):
        if not 1 <= tasks <= len(left):
            raise ConfigError(f"scenario.tasks: {tasks} tasks for {len(left)} classes{besides}; use 1 to {len(left)}")
        sizes = [len(part) for part in np.array_split(np.arange(len(left)), tasks)]
    else:
        sizes = list(tasks)
        if not sizes or min(sizes) < 1 or sum(sizes) > len(left):
            raise ConfigError(
                f"scenario.tasks: sizes {sizes} for {len(left)} classes{besides}; "
                "each at least 1, together at most that"
            )
    bounds = np.cumsum([0, *sizes]).tolist()
    return tuple(left[low:high] for low, high in pairwise(bounds))


def task_starts(rounds: int | Sequence[int], tasks: int) -> list[int]:
    """Return the first round of each task, and at the end the number of all rounds.

    >>> task_starts(4, 2), task_starts([4, 1], 2)
    ([0, 4, 8], [0, 4, 5])
    """
    if isinstance(rounds, int):
        return [task * rounds for task in range(tasks + 1)]
    if len(rounds) != tasks:
        raise ConfigError(
            f"scenario.rounds_per_task: found {len(rounds)} lengths, should be {tasks}, one for each task, or a number"
        )
    starts: list[int] = np.cumsum([0, *rounds]).tolist()
    return starts
