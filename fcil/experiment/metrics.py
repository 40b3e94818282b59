"""From round records to the figures of a run; every function is usable alone."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import TypedDict

from fcil.federation.round_record import RoundRecord


def accuracy_matrix(records: Sequence[RoundRecord]) -> list[list[float]]:
    """Return row i: after task i, the accuracy in percent on the classes of each task up to i."""
    last = _last_measured(records)
    return [
        [100 * right / total for right, total in zip(last[task].correct, last[task].total, strict=True)]
        for task in sorted(last)
    ]


def accuracy_per_task(records: Sequence[RoundRecord]) -> list[float]:
    """Return, after each task, the accuracy in percent over all classes seen so far."""
    last = _last_measured(records)
    return [100 * sum(last[task].correct) / sum(last[task].total) for task in sorted(last)]


def classes_seen(records: Sequence[RoundRecord]) -> list[int]:
    """Return the number of classes that had come by the end of each task."""
    last = _last_measured(records)
    return [last[task].classes_seen for task in sorted(last)]


def _last_measured(records: Sequence[RoundRecord]) -> dict[int, RoundRecord]:
    """Return the last round of each task in which accuracy was measured."""
    return {record.task: record for record in records if record.correct}


def forgetting(matrix: Sequence[Sequence[float]]) -> float | None:
    """Return how far, on average over the earlier tasks, the final accuracy fell below the best one reached before.

    With fewer than two tasks there is nothing to forget, and it is not defined.

    >>> forgetting([[90.0], [50.0, 80.0], [40.0, 70.0, 60.0]])  # (90 - 40 + 80 - 70) / 2
    30.0
    """
    final = matrix[-1] if matrix else []
    earlier = range(len(final) - 1)
    drops = [max(row[task] for row in matrix[task:-1]) - final[task] for task in earlier]
    return sum(drops) / len(drops) if drops else None


def backward_transfer(matrix: Sequence[Sequence[float]]) -> float | None:
    """Return the mean change on the earlier tasks between having learnt each and the end.

    With fewer than two tasks it is not defined.

    >>> backward_transfer([[90.0], [50.0, 80.0], [40.0, 70.0, 60.0]])  # (40 - 90 + 70 - 80) / 2
    -30.0
    """
    final = matrix[-1] if matrix else []
    changes = [final[task] - matrix[task][task] for task in range(len(final) - 1)]
    return sum(changes) / len(changes) if changes else None


class Detection(TypedDict):
    """Alarms against the scenario's truth; the delay counts rounds from an arrival to its alarm."""

    hits: int
    misses: int
    false_alarms: int
    mean_delay: float | None


def detection(records: Sequence[RoundRecord]) -> Detection:
    """Return how the alarms met the arrivals of new classes.

    An alarm answers the client's open arrival, if it has one; an arrival that is still open when the next one comes, or
    at the end, is a miss.
    """
    open_since: dict[int, int] = {}
    delays: list[int] = []
    misses = false_alarms = 0
    for record in records:
        for client in record.arrivals:
            misses += client in open_since
            open_since[client] = record.round
        for client in record.alarms:
            if client in open_since:
                delays.append(record.round - open_since.pop(client))
            else:
                false_alarms += 1
    return Detection(
        hits=len(delays),
        misses=misses + len(open_since),
        false_alarms=false_alarms,
        mean_delay=sum(delays) / len(delays) if delays else None,
    )
