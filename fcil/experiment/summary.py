"""summary.json: the figures of a finished run, or of one under way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NotRequired

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from fcil.core.errors import DamagedError
from fcil.experiment.metrics import (
    Detection,
    accuracy_matrix,
    accuracy_per_task,
    backward_transfer,
    classes_seen,
    detection,
    forgetting,
)
from fcil.experiment.warnings import remarks
from fcil.federation.round_record import FailureRecord, RoundRecord


@with_config(ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))
class Summary(TypedDict):
    """The run's figures; accuracies are percent, bytes and seconds are totals."""

    method: str
    edition: str
    seed: int
    accuracy: list[float]  # after each task, over all classes seen
    accuracy_matrix: list[list[float]]
    classes_seen: list[int]
    average: float | None
    last: float | None
    forgetting: float | None  # of one task it is not defined
    backward_transfer: float | None
    detection: Detection
    bytes_up: int
    bytes_down: int
    failures: list[FailureRecord]
    warnings: NotRequired[list[str]]  # results that were kept earlier have none
    seconds: float


class Figures(TypedDict):
    """The part of a summary that the leaderboard needs; every summary is one."""

    seed: int
    average: float | None
    bytes_up: int
    bytes_down: int
    failures: list[FailureRecord]
    seconds: float


_SUMMARY = TypeAdapter(Summary)


def summarise(records: Sequence[RoundRecord], method: str, edition: str, seed: int) -> Summary:
    """Return the figures of the finished rounds."""
    matrix = accuracy_matrix(records)
    accuracy = accuracy_per_task(records)
    return {
        "method": method,
        "edition": edition,
        "seed": seed,
        "accuracy": [round(value, 4) for value in accuracy],
        "accuracy_matrix": [[round(value, 4) for value in row] for row in matrix],
        "classes_seen": classes_seen(records),
        "average": _rounded(sum(accuracy) / len(accuracy) if accuracy else None),
        "last": _rounded(accuracy[-1] if accuracy else None),
        "forgetting": _rounded(forgetting(matrix)),
        "backward_transfer": _rounded(backward_transfer(matrix)),
        "detection": detection(records),
        "bytes_up": sum(record.bytes_up for record in records),
        "bytes_down": sum(record.bytes_down for record in records),
        "failures": [{**failure, "round": failure["round"] + 1} for record in records for failure in record.failures],
        "warnings": remarks(records),
        "seconds": round(sum(record.seconds for record in records), 3),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def average_of(summary: Figures) -> float:
    """Return the average accuracy of a run that has measured any, as every finished one has."""
    if summary["average"] is None:
        raise ValueError(f"seed {summary['seed']}: a run without accuracy has no average")
    return summary["average"]


def as_summary(document: Any, path: Path) -> Summary:
    """Return the summary that was read from a file, once every figure is found to be of its type."""
    try:
        summary = _SUMMARY.validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(["summary", *map(str, first["loc"])])
        raise DamagedError(f"{path} does not hold the figures of a run: {key}: {first['msg']}") from error
    problem = _contradiction(summary)
    if problem:
        raise DamagedError(f"{path} does not hold the figures of a finished run: {problem}")
    return summary


def _contradiction(summary: Summary) -> str | None:
    """Say why no finished run can have these figures, if none can."""
    tasks = len(summary["accuracy"])
    if not tasks or summary["average"] is None or summary["last"] is None:
        return "it has no accuracy, or no average or last one"
    lengths = [len(row) for row in summary["accuracy_matrix"]]
    if lengths != [*range(1, tasks + 1)] or len(summary["classes_seen"]) != tasks:
        return f"it has {tasks} accuracies, and other figures for another number of tasks"
    return None
