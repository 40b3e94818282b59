"""What is written down about a round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]


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
