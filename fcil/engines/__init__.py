"""Engines: where a round's orders are carried out."""

from fcil.engines.serial import SerialEngine

ENGINES = {"serial": SerialEngine}

__all__ = ["ENGINES", "SerialEngine"]
