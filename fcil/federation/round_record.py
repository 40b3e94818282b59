"""The record of a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from fcil.core.messages import Failure

Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]
OBJECTIONS = ("update", "announce")  # stages of failures that are the server's objections to what a client sent
BUSY = "busy"  # stage of a site that reads new images and takes part again once it has; it has not failed
DETAILED = 256  # clients with a lower number are written down one by one, so that a record stays small


class FailureRecord(TypedDict):
    """A `Failure` as it is written down."""

    client: int
    round: int
    stage: str
    reason: str


class ExclusionRecord(TypedDict):
    """A client whose report the aggregator left out, as it is written down."""

    client: int
    reason: str


class CalibrationRecord(TypedDict):
    """A model's calibration: its temperature and threshold, and their measured quality."""

    temperature: float  # that outputs are divided by
    threshold: float  # probability of the likeliest class below which the answer is "none of these"
    error: float  # expected calibration error, in percent
    uncalibrated: float  # the same at temperature 1
    unknown: NotRequired[float]  # area under the curve that tells classes seen from classes to come


class PrivacyRecord(TypedDict):
    """The differential privacy of each image or client, for all that clients have sent so far."""

    epsilon: float
    delta: float
    unit: NotRequired[Literal["client"]]  # not written where it is an image


def failure_record(failure: Failure) -> FailureRecord:
    """Return a failure as it is written down, its round counted from 1."""
    return FailureRecord(client=failure.client, round=failure.round + 1, stage=failure.stage, reason=failure.reason)


def privacy_record(epsilon: float, delta: float) -> PrivacyRecord:
    """Return an epsilon and a delta as they are written down."""
    return PrivacyRecord(epsilon=round(epsilon, 4), delta=delta)


class SiteRecord(TypedDict):
    """A real site's answers in a round, as they are written down: seconds until they came, bytes, and samples."""

    seconds: Seconds
    samples: Count
    up: Count
    down: Count


class ClientTally(TypedDict):
    """The rounds in which a client was to train, and those in which its report or it was left out."""

    trained: int  # it was a participant
    excluded: int  # the aggregator left its report out
    refused: int  # the server refused what it sent
    failed: int  # it did not answer, or with an error


@dataclass(frozen=True)
class RoundRecord:
    """One round; task, groups and arrivals are the scenario's truth, alarms and entropy what sites measured."""

    __pydantic_config__: ClassVar = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)  # when it is read back

    round: Count  # from 1, as on the screen
    task: Count
    classes: Count
    clients: Count
    groups: dict[str, Count]
    participants: list[Count]
    reports: Count
    alarms: list[Count]
    arrivals: list[Count]
    entropy: float | None
    loss: float | None
    proxy: dict[str, float]
    bytes_up: Count
    bytes_down: Count
    failures: list[FailureRecord]
    seconds: Seconds
    correct: list[Count] = field(default_factory=list)  # right predictions per task, where the round was evaluated
    total: list[Count] = field(default_factory=list)  # test images per task
    ends_task: bool = False
    diverged: list[Count] = field(default_factory=list)  # participants whose loss was not finite
    # What follows is for reports; runs of earlier versions lack it.
    model: str = ""  # digest of the model that was sent
    teachers: dict[str, str] = field(default_factory=dict)  # digests of the old models on offer: current and last
    members: dict[str, list[Count]] | None = None  # clients of each group, where that changed since the round before
    entropies: dict[str, float] = field(default_factory=dict)  # what each client measured, by its number
    per_class: dict[str, tuple[Count, Count]] = field(default_factory=dict)  # right and all test images, by class id
    attached: dict[str, str] = field(default_factory=dict)  # digests of side files: confusion, prototypes
    traffic: dict[str, tuple[Count, Count]] = field(default_factory=dict)  # bytes up and down, by phase
    excluded: list[ExclusionRecord] = field(default_factory=list)  # not written where nobody was
    backdoor: tuple[Count, Count] | None = None  # images that a backdoor turns, of how many; not written without one
    calibration: CalibrationRecord | None = None  # at the end of a task; not written elsewhere
    privacy: PrivacyRecord | None = None  # not written without differential privacy
    not_applied: str = ""  # why the model stays an earlier one; not written where the round was applied
    began: str = ""  # ISO times of a real federation's round; not written elsewhere
    ended: str = ""
    sites: dict[str, SiteRecord] = field(default_factory=dict)  # by number, in a real federation
    retired: Count = 0  # classes that operators have withdrawn or merged; not written where there is none
    clipped: Count = 0  # numbers of masked reports that were out of range; not written where none was

    @property
    def classes_seen(self) -> int:
        """Return how many classes have come: all that were tested, though some may wait for their output."""
        return max(self.classes, len(self.per_class))


@dataclass(frozen=True)
class Measured:
    """The accuracy of a round's model, and the classes and images that it was measured on."""

    round: int
    right: int
    images: int
    covered: int  # classes with images
    classes: int  # outputs of the model

    @property
    def accuracy(self) -> float:
        """The accuracy in percent."""
        return 100 * self.right / self.images

    @property
    def words(self) -> str:
        """The accuracy, with its coverage where that is not whole."""
        part = "" if self.covered >= self.classes else f" on {self.covered} of {self.classes} classes"
        return f"{self.accuracy:.1f} %{part}"


def measured(record: RoundRecord) -> Measured | None:
    """Return the accuracy of a round, as far as it was measured: of all blocks, or of the classes that have images."""
    if record.total:
        classes = record.classes_seen - record.retired
        covered = len(record.per_class) or classes  # runs of earlier versions do not have it
        return Measured(record.round, sum(record.correct), sum(record.total), covered, classes)
    if not record.per_class:
        return None
    right, images = (sum(counts[place] for counts in record.per_class.values()) for place in (0, 1))
    return Measured(record.round, right, images, len(record.per_class), record.classes - record.retired)


def exclusions(excluded: Mapping[int, str]) -> list[ExclusionRecord]:
    """Return the excluded clients as they are written down, ascending.

    >>> exclusions({3: "too far away", 1: "too far away"})
    [{'client': 1, 'reason': 'too far away'}, {'client': 3, 'reason': 'too far away'}]
    """
    return [ExclusionRecord(client=client, reason=reason) for client, reason in sorted(excluded.items())]


def client_tallies(records: Iterable[RoundRecord]) -> dict[int, ClientTally]:
    """Return the tally of each client in the records, ascending."""
    found: dict[int, ClientTally] = {}

    def add(client: int, key: Literal["trained", "excluded", "refused", "failed"]) -> None:
        found.setdefault(client, ClientTally(trained=0, excluded=0, refused=0, failed=0))[key] += 1

    for record in records:
        for client in record.participants:
            add(client, "trained")
        for exclusion in record.excluded:
            add(exclusion["client"], "excluded")
        for failure in record.failures:
            if failure["stage"] == BUSY:
                continue
            add(failure["client"], "refused" if failure["stage"] in OBJECTIONS else "failed")
    return dict(sorted(found.items()))
