"""The record of a round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]
DETAILED = 256  # clients with a lower number are written down one by one, so that a record stays small


class FailureRecord(TypedDict):
    """A `Failure` as it is written down."""

    client: int
    round: int
    stage: str
    reason: str


@dataclass(frozen=True)
class RoundRecord:
    """One round; task, groups and arrivals are the scenario's truth, alarms and entropy what sites measured."""

    __pydantic_config__: ClassVar = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)  # when it is read back

    round: Count
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

    @property
    def classes_seen(self) -> int:
        """Return how many classes have come: all that were tested, though some may wait for their output."""
        return max(self.classes, len(self.per_class))
