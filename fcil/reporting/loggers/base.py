"""The figures of a round and of a run, by the names that logs give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fcil.experiment.summary import Summary
from fcil.federation.round_record import RoundRecord

EVERY_ROUND = "seconds"  # a figure that no round lacks, and the last of them, so a log that has it has the whole round
TOTALS = ("average", "last", "forgetting", "backward_transfer")


def metrics(record: RoundRecord) -> dict[str, float]:
    """Return the figures of a round by name, as far as they were measured. Accuracies are percent."""
    found: dict[str, float] = {"classes": record.classes}
    if record.total:
        found["accuracy/all"] = 100 * sum(record.correct) / sum(record.total)
        for task, (correct, total) in enumerate(zip(record.correct, record.total, strict=True), 1):
            found[f"accuracy/task_{task}"] = 100 * correct / total
    found |= {name: value for name in ("loss", "entropy") if (value := getattr(record, name)) is not None}
    found |= {f"proxy/{name}": value for name, value in record.proxy.items()}
    return found | {"bytes/up": record.bytes_up, "bytes/down": record.bytes_down, EVERY_ROUND: record.seconds}


def totals(summary: Summary) -> dict[str, float]:
    """Return the figures of a finished run by name, as far as they are defined."""
    figures: Mapping[str, Any] = {**summary}
    return {f"run/{name}": figures[name] for name in TOTALS if figures[name] is not None}
