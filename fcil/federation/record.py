"""What is written down about a round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import ConfigDict
from typing_extensions import TypedDict


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

    round: int
    task: int
    classes: int
    clients: int
    groups: dict[str, int]
    participants: list[int]
    reports: int
    alarms: list[int]
    arrivals: list[int]
    entropy: float | None
    loss: float | None
    proxy: dict[str, float]
    bytes_up: int
    bytes_down: int
    failures: list[FailureRecord]
    seconds: float
    correct: list[int] = field(default_factory=list)  # right predictions per task, where the round was evaluated
    total: list[int] = field(default_factory=list)  # test images per task
    ends_task: bool = False
    diverged: list[int] = field(default_factory=list)  # participants whose loss was not finite
