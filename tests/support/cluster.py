"""One local Ray, or one simulation of Flower's, for all tests of a process; files that they leave open are ignored."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fcil.experiment.build import Maker

without_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed (fcil[ray])")
without_flower = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("flwr", "ray")),
    reason="flwr or ray is not installed (fcil[ray,flower])",
)
running: list[Any] = []  # the simulation of Flower's that tests share


def start_cluster() -> None:
    """Start a local Ray with two cores unless it runs already."""
    import ray

    from fcil.federation.engines import ray_local as local_ray

    stop_simulation()
    if ray.is_initialized():
        return
    local_ray.prepare()
    os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    with open_files_ignored():
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    atexit.register(ray.shutdown)


def on_flower() -> Maker:
    """Return how an engine is made on the simulation of Flower's that tests share, with two nodes."""
    from fcil.federation.engines.flower.engine import FlowerEngine
    from fcil.federation.engines.flower.runtime import Runtime

    if not running:
        with free_for_flower():
            running.append(Runtime(2))
            running[0].grid()
    grid = running[0].grid()
    return lambda place: FlowerEngine(place, grid)


def stop_simulation() -> None:
    """End the simulation that tests share, if there is one."""
    while running:
        with open_files_ignored():
            running.pop().close()


@contextmanager
def free_for_flower() -> Iterator[None]:
    """Leave Ray to a simulation that starts meanwhile: the only one, and without the cluster of other tests."""
    import ray

    stop_simulation()
    with open_files_ignored():
        ray.shutdown()
        yield


@contextmanager
def open_files_ignored() -> Iterator[None]:
    """Pass over the files that Ray leaves open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()
