"""Flower: a simulation's participants played by the nodes of its runtime.

Flower reports to its makers when it is imported and used, unless it is told not to; so this comes before any import.
"""

from __future__ import annotations

import os

from fcil.federation.engines import ray_local as local_ray

SILENCE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
for name, value in SILENCE.items():
    os.environ.setdefault(name, value)
local_ray.prepare()
