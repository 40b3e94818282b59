"""summary.json: the figures of a finished run, or of one under way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from fcil.errors import DamagedError
from fcil.federation.record import FailureRecord, RoundRecord
from fcil.results.metrics import (
    Detection,
    accuracy_matrix,
    accuracy_per_task,
    backward_transfer,
    classes_seen,
    detection,
    forgetting,
)


@with_config(ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))
class Summary(TypedDict):
    """The run's figures; accuracies are percent, bytes and seconds are totals."""

    method: str
    preset: str
    seed: int
    accuracy: list[float]  # after each task, over all classes seen
    accuracy_matrix: list[list[float]]
    classes_seen: list[int]
    average: float | None
    last: float | None
    forgetting: float
    backward_transfer: float
    detection: Detection
    bytes_up: int
    bytes_down: int
    failures: list[FailureRecord]
    seconds: float


_SUMMARY = TypeAdapter(Summary)


def summarise(records: Sequence[RoundRecord], method: str, preset: str, seed: int) -> Summary:
    """Return the figures of the rounds played."""
    matrix = accuracy_matrix(records)
    accuracy = accuracy_per_task(records)
    return {
        "method": method,
        "preset": preset,
        "seed": seed,
        "accuracy": [round(value, 4) for value in accuracy],
        "accuracy_matrix": [[round(value, 4) for value in row] for row in matrix],
        "classes_seen": classes_seen(records),
        "average": round(sum(accuracy) / len(accuracy), 4) if accuracy else None,
        "last": round(accuracy[-1], 4) if accuracy else None,
        "forgetting": round(forgetting(matrix), 4),
        "backward_transfer": round(backward_transfer(matrix), 4),
        "detection": detection(records),
        "bytes_up": sum(record.bytes_up for record in records),
        "bytes_down": sum(record.bytes_down for record in records),
        "failures": [failure for record in records for failure in record.failures],
        "seconds": round(sum(record.seconds for record in records), 3),
    }


def average_of(summary: Summary) -> float:
    """Return the average accuracy of a run that has measured any, as every finished one has."""
    if summary["average"] is None:
        raise ValueError(f"{summary['method']}, seed {summary['seed']}: a run without accuracy has no average")
    return summary["average"]


def as_summary(document: Any, path: Path) -> Summary:
    """Return the summary that was read from a file, once every figure is found to be of its type."""
    try:
        return _SUMMARY.validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(["summary", *map(str, first["loc"])])
        raise DamagedError(f"{path} does not hold the figures of a run: {key}: {first['msg']}") from error
