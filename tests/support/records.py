"""Records of rounds in which nothing happened, but for what a test names."""

from __future__ import annotations

from typing import Any

from fcil.federation.round_record import RoundRecord


def record(number: int, task: int = 0, **fields: Any) -> RoundRecord:
    """Return the record of a round, which is given by its place, from 0."""
    plain: dict[str, Any] = {
        "round": number + 1,
        "task": task,
        "classes": 2 * (task + 1),
        "clients": 3,
        "groups": {},
        "participants": [],
        "reports": 0,
        "alarms": [],
        "arrivals": [],
        "entropy": None,
        "loss": None,
        "proxy": {},
        "bytes_up": 0,
        "bytes_down": 0,
        "failures": [],
        "seconds": 0.0,
    }
    return RoundRecord(**{**plain, **fields})
