"""Aggregation: how participants' reports become one, a file for each way."""

from fcil.aggregation.base import Aggregate, Aggregator, Gathering, PartSum, Settings, Turn
from fcil.aggregation.mean import Mean

AGGREGATORS: dict[str, type[Aggregator]] = {"mean": Mean}

__all__ = ["AGGREGATORS", "Aggregate", "Aggregator", "Gathering", "Mean", "PartSum", "Settings", "Turn"]
