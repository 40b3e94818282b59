"""One local Ray for all tests of a process; files that it leaves open are ignored."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

without_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed (fcil[ray])")


def start_cluster() -> None:
    """Start a local Ray with two cores unless it runs already."""
    import ray

    from fcil.federation.engines.ray import set_defaults

    if ray.is_initialized():
        return
    set_defaults()
    os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    with open_files_ignored():
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    atexit.register(ray.shutdown)


@contextmanager
def open_files_ignored() -> Iterator[None]:
    """Pass over the files that Ray leaves open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()
