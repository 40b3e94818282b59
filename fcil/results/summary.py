"""summary.json: the figures of a finished run, or of one under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fcil.results.metrics import (
    Record,
    accuracy_matrix,
    accuracy_per_task,
    backward_transfer,
    classes_seen,
    detection,
    forgetting,
)
from fcil.results.watch import remarks


def summarise(records: Sequence[Record], method: str, preset: str, seed: int) -> dict[str, Any]:
    """Return the run's figures; accuracies are percent, bytes and seconds are totals."""
    matrix = accuracy_matrix(records)
    accuracy = accuracy_per_task(records)
    return {
        "method": method,
        "preset": preset,
        "seed": seed,
        "accuracy": [round(value, 4) for value in accuracy],
        "accuracy_matrix": [[round(value, 4) for value in row] for row in matrix],
        "classes_seen": classes_seen(records),
        "average": _rounded(sum(accuracy) / len(accuracy) if accuracy else None),
        "last": _rounded(accuracy[-1] if accuracy else None),
        "forgetting": _rounded(forgetting(matrix)),
        "backward_transfer": _rounded(backward_transfer(matrix)),
        "detection": asdict(detection(records)),
        "bytes_up": sum(record["bytes_up"] for record in records),
        "bytes_down": sum(record["bytes_down"] for record in records),
        "failures": [failure for record in records for failure in record["failures"]],
        "warnings": remarks(records),
        "seconds": round(sum(record["seconds"] for record in records), 3),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
