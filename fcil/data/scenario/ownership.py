"""The owners of each task's samples, drawn on first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fcil.core.messages import derive_seed
from fcil.data.scenario.partition import Division, cut, divide, draw_owners, partition_counts, settle_orphans

if TYPE_CHECKING:
    from fcil.data.scenario.scenario import ScenarioConfig


class Takers(NamedTuple):
    """The clients that may own data of a task, as a mask over all clients, and those there when it begins."""

    eligible: NDArray[np.bool_]
    present: NDArray[np.int64]


class Ownership:
    """The division of every task's samples over the clients, by the partition of the settings."""

    def __init__(
        self,
        config: ScenarioConfig,
        tasks: Sequence[tuple[int, ...]],
        samples: Sequence[NDArray[np.int64]],
        seed: int,
        takers: Callable[[int], Takers],
    ) -> None:
        self.config = config
        self.tasks = tasks
        self.samples = samples  # by class
        self.seed = seed
        self.takers = takers
        self._owners: dict[int, NDArray[np.bool_]] = {}
        self._held: dict[int, NDArray[np.bool_]] = {}
        self._divisions: dict[int, Division] = {}

    def held(self, task: int) -> NDArray[np.bool_]:
        """Return the table (clients, classes of the task) of the holders: owners that were given samples."""
        if task not in self._held:
            held = self._drawn(task).copy()
            for column, label in enumerate(self.tasks[task]):
                if not self.config.is_shared and held[:, column].any():
                    division = self._division(task, column)
                    held[division.owners[np.diff(division.cuts) == 0], column] = False
                elif len(self.samples[label]) == 0:
                    held[:, column] = False
            self._held[task] = held
        return self._held[task]

    def parts(self, task: int, client: int) -> list[NDArray[np.int64]]:
        """Return the samples of a task that a client owns, class by class."""
        columns = np.flatnonzero(self._drawn(task)[client]).tolist()
        if self.config.is_shared:
            return [self.samples[self.tasks[task][column]] for column in columns]
        return [self._division(task, column).part(client) for column in columns]

    def deal(self, label: int, owners: NDArray[np.int64]) -> Division:
        """Divide the samples of a class among its owners: in equal parts, or in Dirichlet shares."""
        random = np.random.default_rng(derive_seed(self.seed, "division", label))
        return divide(self.samples[label], owners, self.config.concentration, random)

    def _drawn(self, task: int) -> NDArray[np.bool_]:
        """Return the table (clients, classes of the task) of the owners, a present one for every class if possible."""
        if task not in self._owners:
            draw = self._draw_classes if self.config.partition == "classes" else self._draw_samples
            self._owners[task] = draw(task)
        return self._owners[task]

    def _draw_classes(self, task: int) -> NDArray[np.bool_]:
        eligible, present = self.takers(task)
        random = np.random.default_rng(derive_seed(self.seed, "owners", task))
        drawn = draw_owners(len(eligible), len(self.tasks[task]), self.config.class_fraction, random)
        drawn[~eligible] = False
        return settle_orphans(drawn, present)

    def _draw_samples(self, task: int) -> NDArray[np.bool_]:
        """Return the owners under a partition of samples, and keep the division of each class."""
        config, classes = self.config, self.tasks[task]
        eligible = self.takers(task).eligible
        clients = np.flatnonzero(eligible)
        owners = np.zeros((len(eligible), len(classes)), dtype=np.bool_)
        if len(clients) == 0:
            return owners
        drawn = task if config.shares == "per-task" else 0
        random = np.random.default_rng(derive_seed(self.seed, "partition", drawn))
        sizes = [len(self.samples[label]) for label in classes]
        counts = partition_counts(config.partition, sizes, len(clients), config.concentration, config.shards, random)
        for column, label in enumerate(classes):
            shuffle = np.random.default_rng(derive_seed(self.seed, "division", label))
            self._divisions[label] = cut(self.samples[label], clients, counts[:, column], shuffle)
        owners[clients] = counts > 0
        return owners

    def _division(self, task: int, column: int) -> Division:
        """Return the division of a class among its owners."""
        label = self.tasks[task][column]
        if label not in self._divisions:
            self._divisions[label] = self.deal(label, np.flatnonzero(self._drawn(task)[:, column]))
        return self._divisions[label]


def split_in_words(config: ScenarioConfig) -> str:
    """Return how a scenario divides the samples of a class, as a clause."""
    if config.is_shared:
        return "every owner of a class holds all its samples"
    parameter = f" {config.concentration:g}" if config.concentration is not None else ""
    how = {
        "classes": f"Dirichlet{parameter}" if parameter else "equal parts",
        "dirichlet": f"Dirichlet{parameter}",
        "dirichlet-balanced": f"balanced Dirichlet{parameter}",
        "shards": f"{config.shards} shards of the sorted task for each client",
        "quantity": f"the same mix, Dirichlet{parameter} sizes",
        "iid": "equal parts of the shuffled task",
    }
    return f"each sample has one owner ({how[config.partition]})"
