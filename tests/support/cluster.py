"""One local Ray for all tests of a process; Ray leaves files open, which is not ours to fail on."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import os
import sys
import warnings

import pytest

without_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed (fcil[ray])")


def start_cluster() -> None:
    """Start a local Ray with two cores unless it runs already."""
    import ray

    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        gc.collect()
    atexit.register(ray.shutdown)
