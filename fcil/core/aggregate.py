"""The seam between participants' reports and the server: what an aggregator is given, and what it gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from fcil.core.errors import ConfigError
from fcil.core.messages import ModelState, Report, Weighted
from fcil.core.registry import Member, Registry
from fcil.core.settings_table import SettingsTable

MOST_SAMPLES = 2**40  # the largest number of samples that a report may claim
Need = Literal["rows", "parts"]  # what a report may hold in addition to a model


class Settings(Protocol):
    """The settings that an aggregator is given: the table [federation]."""

    @property
    def averaging(self) -> Literal["uniform", "samples"]:
        """Return how the participants' models are weighted."""
        ...


@dataclass
class PartSum:
    """One part of the reports, summed: the values times their weights, and the weights, in double precision."""

    total: Tensor
    weight: Tensor

    def add(self, part: Weighted) -> None:
        """Take in one report's part, which has the shape of the others."""
        self.total, self.weight = self.total + weighted(part), self.weight + part.weight

    def mean(self) -> Tensor:
        """Return the weighted mean; a row without any weight is zero."""
        return self.total / by_row(torch.where(self.weight > 0, self.weight, 1.0), self.total)


def weighted(part: Weighted) -> Tensor:
    """Return a part's value times its weight, in double precision."""
    return part.value.to(torch.float64) * by_row(part.weight, part.value)


def by_row(weight: Tensor, value: Tensor) -> Tensor:
    """Return the weight, of one number or of one per row, in a shape that multiplies the value."""
    return weight.view(-1, *[1] * (value.ndim - 1)) if weight.ndim else weight


def validate_row_counts(report: Report, names: tuple[str, ...], classes: int) -> str | None:
    """Return the reason why a report's row weights are not its samples per class, or None."""
    listed = " and ".join(names)
    if report.rows.keys() != set(names):
        return f"row weights must be given for exactly: {listed}"
    counts = report.rows[names[0]]
    whole = counts.shape == (classes,) and bool(((counts >= 0) & (counts == counts.round())).all())
    alike = all(torch.equal(report.rows[name], counts) for name in names)
    if not whole or not alike or float(counts.sum()) != report.samples:  # NaN is not whole
        return f"the row weights of {listed} must be {classes} whole numbers that add up to its samples"
    return None


@dataclass(frozen=True)
class Aggregate:
    """The sum of a round's reports: their mean model and the sums of their parts, no report by itself.

    `rows` holds, for each tensor whose rows had weights of their own, the sum of these.
    """

    model: ModelState
    reports: int
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    parts: Mapping[str, PartSum] = field(default_factory=dict)


@dataclass(frozen=True)
class Turn:
    """Whose report it is, of which round, and a seed of the client's own: what a mask or noise follows from."""

    round: int
    client: int
    seed: int


class Gathering(ABC):
    """One round's aggregate in the making: reports are added as they come and need not be kept."""

    @abstractmethod
    def add(self, client: int, report: Report) -> None:
        """Take in the report of a client; it is only lent."""

    @abstractmethod
    def result(self) -> Aggregate:
        """Return the aggregate of all that was added; without any report, the model that was sent."""


class Aggregator(ABC):
    """A rule of aggregation: its half at the client, its half at the server, and what it can serve."""

    serves: ClassVar[frozenset[Need]] = frozenset()  # what it can sum in addition to models
    reads: ClassVar[frozenset[str]] = frozenset()  # settings of `[federation]` it looks at; others are refused
    inspects: ClassVar[bool] = True  # whether the server sees each report, and so can refuse one

    def __init__(self, settings: Settings, own: SettingsTable | None = None) -> None:
        """Take the table `[federation]` and the aggregator's own one, `[federation.NAME]`."""
        self.settings = settings

    def stage(self, report: Report, sent: ModelState, turn: Turn) -> Report:
        """Return the report as it leaves the client (clipped, masked, with noise); unless overridden, as it is.

        `sent` is the model the client began with.
        """
        return report

    @abstractmethod
    def gather(self, sent: ModelState, round: int, participants: Sequence[int]) -> Gathering:
        """Begin a round in which this model was sent to these participants."""


READABLE = frozenset({"averaging"})  # settings of `[federation]` that an aggregator may look at


def _check(member: Member[type[Aggregator]]) -> None:
    if not isinstance(member.build, type) or not issubclass(member.build, Aggregator):
        raise ConfigError(f"the build of {member.name} is {member.build!r}, should be a kind of Aggregator")
    strange = sorted(member.build.reads - READABLE)
    if strange:
        raise ConfigError(f"{member.name} reads {', '.join(strange)}; there is {', '.join(sorted(READABLE))}")


AGGREGATORS: Registry[Member[type[Aggregator]]] = Registry(
    "aggregator", "fcil.federation.aggregation", "fcil.aggregators", _check
)


def register_aggregator(member: Member[type[Aggregator]]) -> None:
    """Make an aggregator known, under a name that no other one has; its file calls this once, at its end."""
    AGGREGATORS.register(member)
