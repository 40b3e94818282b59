"""Engines: where a round's orders are carried out."""

from __future__ import annotations

import importlib.util

from fcil.core.errors import ConfigError
from fcil.federation.engines.base import Recipe, Workplace
from fcil.federation.engines.pool import default_workers
from fcil.federation.engines.serial import SerialEngine
from fcil.federation.simulation import Engine

ENGINES = {
    "serial": "one client after another, in this process",
    "processes": "participants in worker processes of this machine",
    "ray": "participants on a Ray cluster, or on a local one",
}
WORTH_WORKERS = 2e11  # multiply-adds of a round's training; below, starting workers costs more than they save


def make_engine(name: str, place: Workplace) -> Engine:
    """Return the engine of that name."""
    if name == "serial":
        return SerialEngine(place.clients, place.recipe.aggregator(), place.local)
    if name == "processes":
        from fcil.federation.engines.processes import ProcessEngine  # noqa: PLC0415

        return ProcessEngine(place)
    if name != "ray":
        raise KeyError(name)
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "run.engine: ray is not installed; install fcil with its extra `ray`, or use serial or processes"
        )
    from fcil.federation.engines.ray import RayEngine  # noqa: PLC0415

    return RayEngine(place)


__all__ = ["ENGINES", "WORTH_WORKERS", "Recipe", "SerialEngine", "Workplace", "default_workers", "make_engine"]
