"""Engines: where a round's orders are carried out."""

from __future__ import annotations

import importlib
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
    "flower": "participants on the nodes of Flower's simulation runtime, on this machine",
}
WORTH_WORKERS = 2e11  # multiply-adds of a round's training; below, starting workers costs more than they save


def make_engine(name: str, place: Workplace) -> Engine:
    """Return the engine of that name."""
    if name == "serial":
        return SerialEngine(place.sites, place.recipe.aggregator(), place.local)
    if name == "processes":
        from fcil.federation.engines.processes import ProcessEngine  # noqa: PLC0415

        return ProcessEngine(place)
    if name == "ray":
        _require("ray", "ray", "ray")
        from fcil.federation.engines.ray import RayEngine  # noqa: PLC0415

        return RayEngine(place)
    if name != "flower":
        raise KeyError(name)
    _require("flwr", "flower (flwr)", "ray,flower")
    _require("ray", "ray, on which Flower simulates,", "ray,flower")
    from fcil.federation.engines.flower.engine import FlowerEngine  # noqa: PLC0415

    return FlowerEngine(place)


def _require(module: str, what: str, extras: str) -> None:
    """Raise a ConfigError unless a module that an engine needs is installed."""
    if importlib.util.find_spec(module) is None:
        word = "extras" if "," in extras else "extra"
        raise ConfigError(
            f"run.engine: {what} is not installed; install fcil with its {word} `{extras}`, or use serial or processes"
        )


__all__ = ["ENGINES", "WORTH_WORKERS", "Recipe", "SerialEngine", "Workplace", "default_workers", "make_engine"]
