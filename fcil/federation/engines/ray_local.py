"""What Ray is told before it starts on this machine."""

from __future__ import annotations

import os

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # it reports to nobody
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the coming default; the other one warns
    # By default its workers yield to every other process. Where the processors are busy they then hardly come up, are
    # taken for dead after a minute, and are started again: a run stands still.
    "RAY_worker_niceness": "0",
}


def prepare() -> None:
    """Set for this process and its children what nobody has set."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
