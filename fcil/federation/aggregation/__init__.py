"""Aggregation: how participants' reports become one, a file for each way."""

from fcil.core.aggregate import (
    AGGREGATORS,
    Aggregate,
    Aggregator,
    Gathering,
    PartSum,
    Settings,
    Turn,
    register_aggregator,
)
from fcil.federation.aggregation.mean import Mean

__all__ = [
    "AGGREGATORS",
    "Aggregate",
    "Aggregator",
    "Gathering",
    "Mean",
    "PartSum",
    "Settings",
    "Turn",
    "register_aggregator",
]
