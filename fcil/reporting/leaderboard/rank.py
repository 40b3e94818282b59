"""The leaderboard as a pure function of runs: averages over seeds, ranks, cost and uploads per method."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from fcil.core.errors import ConfigError
from fcil.experiment.summary import Figures, average_of
from fcil.reporting.compare.tables import Spread
from fcil.reporting.significance import paired_interval

Origin = Literal["kept", "added", "published"]
LEVEL = 2.0  # points within which a method is level with the first


@dataclass(frozen=True)
class LeaderboardRun:
    """One run, with its row and column in the table."""

    experiment: str
    label: str  # of its row: the method, and its settings where they are not the experiment's
    origin: Literal["kept", "added"]
    summary: Figures
    place: str  # path of the run
    contends: bool = True  # whether it has a rank: bounds and variants have none
    kin: str = ""  # the method whose variant it is
    sends: tuple[str, ...] = ()  # in addition to the model
    machine: str = ""


@dataclass(frozen=True)
class Cell:
    """A method on an experiment; a published result has an average only."""

    average: Spread
    averages: Mapping[int, float] = field(default_factory=dict)  # by seed
    places: Mapping[int, str] = field(default_factory=dict)  # of the runs, by seed
    minutes: float | None = None  # of the quickest run: the others had more beside them, or a slower machine
    bytes_up: float | None = None  # here and below: mean over the runs
    bytes_down: float | None = None
    failures: int = 0  # of clients, in all runs
    rank: int | None = None  # among the kept methods, by the average over the seeds that ranks compare
    others: int = 0  # methods that the rank compares it with
    below: int = 0  # those of them that are below it
    leads: bool = False  # whether it is the first, or shown to be level with it
    machines: tuple[str, ...] = ()  # of the runs

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return the seeds it was run with."""
        return tuple(sorted(self.averages))


@dataclass(frozen=True)
class MethodRow:
    """One row: a method, with the settings that differ from the experiment's."""

    label: str
    origin: Origin
    contends: bool
    kin: str
    sends: tuple[str, ...]
    cells: Mapping[str, Cell]  # by experiment, for experiments with a run
    mean_rank: float | None = None  # over the experiments on which most methods have a rank


@dataclass(frozen=True)
class Leaderboard:
    """The whole table; `seeds` are the ones that the ranks of an experiment compare."""

    seeds: Mapping[str, tuple[int, ...]]  # by experiment, in the order of the columns
    rows: tuple[MethodRow, ...]
    machines: tuple[str, ...]  # of the kept runs
    splits: Mapping[str, str] = field(default_factory=dict)  # by experiment: who holds a class's samples

    @property
    def experiments(self) -> tuple[str, ...]:
        """Return the experiments in the order of their columns."""
        return tuple(self.seeds)

    def passed(self, row: MethodRow) -> list[str]:
        """Return the experiments on which a bound is passed by a method, over the seeds that both have."""
        if row.origin != "kept" or row.contends or row.kin:
            return []
        kept = [other for other in self.rows if other.origin == "kept" and other is not row]
        return [
            name
            for name, bound in row.cells.items()
            if any(_is_above(other.cells[name], bound) for other in kept if name in other.cells)
        ]


def leaderboard(
    experiments: Sequence[str],
    runs: Iterable[LeaderboardRun],
    published: Mapping[str, Mapping[str, float]] | None = None,
) -> Leaderboard:
    """Return the table of some runs; `published` has averages as printed in the paper, by experiment and method.

    Added rows get the rank that they would have among the kept ones, which they leave as they are.
    """
    found = list(runs)
    rows = [_method_row(key, of_row) for key, of_row in _by_row(found).items()]
    seeds = {name: _compared_seeds(rows, name) for name in experiments}
    for name in experiments:
        rows = _ranked(rows, name, seeds[name])
    rows = _with_mean_ranks(rows)
    rows += _as_published(published or {})
    machines = {run.machine for run in found if run.origin == "kept" and run.machine}
    return Leaderboard(seeds, tuple(_in_order(rows)), tuple(sorted(machines)))


# --- rows and cells -----------------------------------------------------------------------------------------------


def _by_row(runs: Iterable[LeaderboardRun]) -> dict[tuple[str, str], list[LeaderboardRun]]:
    found: dict[tuple[str, str], list[LeaderboardRun]] = {}
    for run in runs:
        found.setdefault((run.label, run.origin), []).append(run)
    return found


def _method_row(key: tuple[str, str], runs: Sequence[LeaderboardRun]) -> MethodRow:
    experiments = dict.fromkeys(run.experiment for run in runs)
    cells = {name: _cell([run for run in runs if run.experiment == name]) for name in experiments}
    sends = tuple(dict.fromkeys(words for run in runs for words in run.sends))
    return MethodRow(key[0], runs[0].origin, runs[0].contends, runs[0].kin, sends, cells)


def _cell(runs: Sequence[LeaderboardRun]) -> Cell:
    """Return the cell of a method's runs on one experiment, one for each seed."""
    places: dict[int, str] = {}
    for run in runs:
        seed = run.summary["seed"]
        if seed in places:
            raise ConfigError(
                f"{run.place} and {places[seed]} are both {run.label} on {run.experiment} with seed {seed}; name one"
            )
        places[seed] = run.place
    summaries = [run.summary for run in runs]
    averages = {summary["seed"]: average_of(summary) for summary in summaries}
    return Cell(
        Spread.of(list(averages.values())),
        averages,
        places,
        min(summary["seconds"] for summary in summaries) / 60,
        statistics.mean(summary["bytes_up"] for summary in summaries),
        statistics.mean(summary["bytes_down"] for summary in summaries),
        sum(len(summary["failures"]) for summary in summaries),
        machines=tuple(sorted({run.machine for run in runs if run.machine})),
    )


def _as_published(published: Mapping[str, Mapping[str, float]]) -> list[MethodRow]:
    methods = dict.fromkeys(method for averages in published.values() for method in averages)
    return [
        MethodRow(
            method,
            "published",
            contends=False,
            kin=method,
            sends=(),
            cells={
                name: Cell(Spread(averages[method], None)) for name, averages in published.items() if method in averages
            },
        )
        for method in methods
    ]


# --- ranks --------------------------------------------------------------------------------------------------------


def _contenders(rows: Sequence[MethodRow], experiment: str) -> list[MethodRow]:
    return [row for row in rows if row.origin == "kept" and row.contends and experiment in row.cells]


def _compared_seeds(rows: Sequence[MethodRow], experiment: str) -> tuple[int, ...]:
    """Return the seeds that ranks compare: the seeds shared by most of the kept methods.

    Methods with a single seed count only if none has several: otherwise many of them would make one seed decide.
    """
    every_run = [row.cells[experiment].seeds for row in _contenders(rows, experiment)]
    held = [seeds for seeds in every_run if len(seeds) > 1] or every_run
    every = sorted({seed for seeds in held for seed in seeds})
    return tuple(seed for seed in every if 2 * sum(seed in seeds for seeds in held) > len(held))


def _ranked(rows: Sequence[MethodRow], experiment: str, seeds: tuple[int, ...]) -> list[MethodRow]:
    """Return the rows with their ranks on an experiment; a row that lacks one of the seeds has none."""
    can = [row for row in rows if row.contends and seeds and set(seeds) <= set(_seeds(row, experiment))]
    kept = [row.cells[experiment] for row in can if row.origin == "kept"]
    if not kept:
        return list(rows)
    first = max(kept, key=lambda cell: _mean(cell, seeds))
    ranked = []
    for row in rows:
        if row not in can:
            ranked.append(row)
            continue
        cell = row.cells[experiment]
        others = [_shown(other, seeds) for other in kept if other is not cell]
        own = _shown(cell, seeds)
        rank = 1 + sum(other > own for other in others)
        below = sum(other < own for other in others)
        leads = rank == 1 or _is_level(cell, first, seeds)
        placed = replace(cell, rank=rank, others=len(others), below=below, leads=leads)
        ranked.append(replace(row, cells={**row.cells, experiment: placed}))
    return ranked


def _with_mean_ranks(rows: Sequence[MethodRow]) -> list[MethodRow]:
    """Return the rows with their mean rank, over the experiments on which most methods have a rank.

    A rank among four methods says less than one among sixteen, so the two are not averaged.
    """
    methods = [row for row in rows if row.origin == "kept" and row.contends]
    ranked = Counter(name for row in methods for name, cell in row.cells.items() if cell.rank is not None)
    counted = {name for name, number in ranked.items() if 2 * number > len(methods)}
    found = []
    for row in rows:
        ranks = [cell.rank for name, cell in row.cells.items() if name in counted and cell.rank is not None]
        found.append(replace(row, mean_rank=statistics.mean(ranks) if ranks else None))
    return found


def _seeds(row: MethodRow, experiment: str) -> tuple[int, ...]:
    return row.cells[experiment].seeds if experiment in row.cells else ()


def _is_above(cell: Cell, other: Cell) -> bool:
    common = sorted(cell.averages.keys() & other.averages.keys())
    return bool(common) and _mean(cell, common) > _mean(other, common)


def _mean(cell: Cell, seeds: Sequence[int]) -> float:
    return statistics.mean(cell.averages[seed] for seed in seeds)


def _shown(cell: Cell, seeds: Sequence[int]) -> float:
    """Return the mean as precisely as it is printed: methods that print alike share a rank."""
    return float(f"{_mean(cell, seeds):.1f}")


def _is_level(cell: Cell, first: Cell, seeds: Sequence[int]) -> bool:
    """Say whether a method is shown to be level with the first: its differences leave zero open, and little more.

    The confidence interval of the paired differences has zero in it and ends within LEVEL points. A wide spread shows
    nothing, and neither does a single seed.
    """
    interval = paired_interval([first.averages[seed] - cell.averages[seed] for seed in seeds])
    return interval is not None and interval[0] <= 0 and interval[1] <= LEVEL


# --- the order of rows --------------------------------------------------------------------------------------------


def _in_order(rows: Sequence[MethodRow]) -> list[MethodRow]:
    """Return the rows by mean rank; a method's variants come below it, the bounds at the end."""
    heads = {row.label: row for row in rows if row.origin == "kept" and not row.kin}

    def key(row: MethodRow) -> tuple[bool, float, int, str, bool, str, str]:
        head = heads.get(row.kin, row)
        rank = math.inf if head.mean_rank is None else head.mean_rank
        is_bound = head.mean_rank is None and not head.contends
        below = sum(cell.below for cell in head.cells.values())  # an added method shares its rank with the next one
        return is_bound, rank, -below, head.label, head is not row, row.label, row.origin

    return sorted(rows, key=key)
