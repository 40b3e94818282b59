"""The interface of aggregators: their inputs, participants' reports, and their output, the next model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from fcil.core.errors import ConfigError
from fcil.core.messages import Message, ModelState, Report, RoundContext, Weighted
from fcil.core.registry import Member, Registry
from fcil.core.settings_table import SettingsTable

MOST_SAMPLES = 2**40  # the largest number of samples that a report may claim
Need = Literal["rows", "parts", "exact parts"]  # what a report may hold in addition to a model; exact: never bounded


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
    error: float = 0.0  # by which a number of the total may be wrong, where it was summed in fixed point

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

    `reports` counts the reports that the model rests on. `excluded` names the clients whose report was left out, each
    with a reason, and `clients` the senders of the others. `rows` holds, for each tensor whose rows had weights of
    their own, the sum of these.
    """

    model: ModelState
    reports: int
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    parts: Mapping[str, PartSum] = field(default_factory=dict)
    excluded: Mapping[int, str] = field(default_factory=dict)
    clients: tuple[int, ...] = ()
    clipped: int = 0  # numbers of all reports that were out of range, where they were summed in fixed point


@dataclass(frozen=True)
class PartLayout:
    """The form of a part in every report of a round, whatever a client holds, and the bounds of its numbers."""

    shape: tuple[int, ...]
    most: float  # a larger number of the value is clipped
    weights: tuple[int, ...] = ()  # the shape of the weight
    heaviest: float | None = None  # the largest weight; None: federation.max_samples


@dataclass(frozen=True)
class ReportLayout:
    """The form of every report of a round: its model, the tensors whose rows have weights, and its parts."""

    model: ModelState
    rows: tuple[str, ...] = ()
    parts: Mapping[str, PartLayout] = field(default_factory=dict)


Layout = Callable[[ModelState, RoundContext], ReportLayout | None]  # of the model that is sent and its round


@dataclass(frozen=True)
class Turn:
    """The round and the client of a report, and the seed from which the client draws noise.

    At a real site the seed is fresh for every answer, so that the noise of two answers never cancels; an answer that is
    sent again is the same answer. In a simulation it follows from the run's seed.
    """

    round: int
    client: int
    seed: int
    context: RoundContext | None = None
    masks: Message | None = None  # of the client's report, where reports are masked


class Gathering(ABC):
    """One round's aggregate in the making: reports are added as they come and need not be kept."""

    expected: ModelState | None = None  # tensors of a report that leaves a client, where these are not the model's

    @abstractmethod
    def add(self, client: int, report: Report) -> None:
        """Take in the report of a client; it is only lent."""

    @abstractmethod
    def result(self) -> Aggregate:
        """Return the aggregate of all that was added; without any report, the model that was sent."""


class Aggregator(ABC):
    """A rule of aggregation: its half at the client, its half at the server, and the needs that it serves."""

    serves: ClassVar[frozenset[Need]] = frozenset()  # what it can sum in addition to models
    reads: ClassVar[frozenset[str]] = frozenset()  # settings of `[federation]` it looks at; others are refused
    inspects: ClassVar[bool] = True  # whether the server sees each report, and so can refuse one
    holds: ClassVar[bool] = False  # whether it keeps all reports of a round in memory, to compare them
    hides: ClassVar[bool] = False  # whether all reports have one form, so that the server learns their sum alone

    def __init__(self, settings: Settings, own: SettingsTable | None = None) -> None:
        """Take the table `[federation]` and the aggregator's own one, `[federation.NAME]`."""
        self.settings = settings
        self.layout: Layout | None = None

    def hide(self, layout: Layout, rows: bool) -> None:
        """Take the form of the method's reports, whose `rows` have weights; for an aggregator that hides them."""
        self.layout = layout

    def stage(self, report: Report, sent: ModelState, turn: Turn) -> Report:
        """Return the report as it leaves the client (clipped, masked, with noise); unless overridden, as it is.

        `sent` is the model the client began with.
        """
        return report

    def open(self, sent: ModelState, context: RoundContext, participants: Sequence[int]) -> Gathering:
        """Begin a round in which this model was sent to these participants."""
        return self.gather(sent, context.round, participants)

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
