"""summary.json: the figures of a finished run, or of one under way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired

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
from fcil.federation.round_record import CalibrationRecord, FailureRecord, PrivacyRecord, RoundRecord
from fcil.methods import methods
from fcil.methods.privacy import not_covered


class Privacy(TypedDict):
    """The differential privacy of each image or client, and the uploads that it does not cover."""

    epsilon: float
    delta: float
    unit: NotRequired[Literal["client"]]
    not_covered: list[str]


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
    last_round: NotRequired[int]  # in which `last` was measured, where that is not the last round
    forgetting: float | None  # of one task it is not defined
    backward_transfer: float | None
    detection: Detection
    calibration: NotRequired[CalibrationRecord]  # of the last model; results that were kept earlier have none
    privacy: NotRequired[Privacy]
    backdoor: NotRequired[float]  # of the images of other classes, which share its trigger turns at the end, in percent
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
    complete = [record.round for record in records if record.total][-1:]
    late: dict[str, Any] = {"last_round": complete[0]} if complete and complete[0] != records[-1].round else {}
    accuracy = accuracy_per_task(records)
    turned = [record.backdoor for record in records if record.backdoor]
    backdoor: dict[str, Any] = (
        {"backdoor": round(100 * turned[-1][0] / turned[-1][1], 4)} if turned and turned[-1][1] else {}
    )
    is_calibrated = any(record.calibration for record in records)
    calibration: dict[str, Any] = {"calibration": _with_unknown(records)} if is_calibrated else {}
    guarantees = [record.privacy for record in records if record.privacy]
    privacy: dict[str, Any] = {"privacy": _guarantee(guarantees[-1], method)} if guarantees else {}
    return {
        "method": method,
        "edition": edition,
        "seed": seed,
        "accuracy": [round(value, 4) for value in accuracy],
        "accuracy_matrix": [[round(value, 4) for value in row] for row in matrix],
        "classes_seen": classes_seen(records),
        "average": _rounded(sum(accuracy) / len(accuracy) if accuracy else None),
        "last": _rounded(accuracy[-1] if accuracy else None),
        **late,  # type: ignore[typeddict-item]
        "forgetting": _rounded(forgetting(matrix)),
        "backward_transfer": _rounded(backward_transfer(matrix)),
        "detection": detection(records),
        **calibration,
        **privacy,
        **backdoor,
        "bytes_up": sum(record.bytes_up for record in records),
        "bytes_down": sum(record.bytes_down for record in records),
        "failures": [failure for record in records for failure in record.failures],
        "warnings": remarks(records),
        "seconds": round(sum(record.seconds for record in records), 3),
    }


def _with_unknown(records: Sequence[RoundRecord]) -> CalibrationRecord:
    """Return the last calibration, with the mean area under the curve of the tasks that had classes to come."""
    known = [record.calibration for record in records if record.calibration is not None]
    areas = [found["unknown"] for found in known if "unknown" in found]
    return CalibrationRecord(**{**known[-1], **({"unknown": round(sum(areas) / len(areas), 4)} if areas else {})})  # type: ignore[typeddict-item]


def _guarantee(found: PrivacyRecord, method: str) -> Privacy:
    """Return a guarantee with all that it does not cover."""
    known = methods().get(method)
    kind = known.config.private if known else None
    return {**found, "not_covered": [*not_covered(found.get("unit", "image"), kind)]}


def privacy_in_words(summary: Summary) -> str | None:
    """Return the guarantee of a run under differential privacy, and what it does not cover."""
    found = summary.get("privacy")
    if found is None:
        return None
    unit = "client" if "unit" in found else "image of a client"
    what = f"epsilon {found['epsilon']:g} at delta {found['delta']:g} for each {unit}"
    return f"{what}; not covered: {', '.join(found['not_covered'])}"


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
