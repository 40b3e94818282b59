"""Engines: where a round's orders are carried out, a file for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fcil.federation.engines.base import ENGINES, Recipe, Workplace, default_workers, register_engine
from fcil.federation.engines.serial import SerialEngine

if TYPE_CHECKING:
    from fcil.federation.simulation import Engine

WORTH_WORKERS = 2e11  # multiply-adds of a round's training; below, starting workers costs more than they save


def make_engine(name: str, place: Workplace) -> Engine:
    """Return the engine of that name, or raise a KeyError; its requirements must be installed."""
    ENGINES[name].require("run.engine")
    return ENGINES[name].build(place)


__all__ = [
    "ENGINES",
    "WORTH_WORKERS",
    "Recipe",
    "SerialEngine",
    "Workplace",
    "default_workers",
    "make_engine",
    "register_engine",
]
