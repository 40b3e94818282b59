"""Aggregation: how participants' reports become one, a file for each way."""

from fcil.core.aggregate import Aggregate, Aggregator, Gathering, PartSum, Settings, Turn
from fcil.federation.aggregation.mean import Mean

AGGREGATORS: dict[str, type[Aggregator]] = {"mean": Mean}

__all__ = ["AGGREGATORS", "Aggregate", "Aggregator", "Gathering", "Mean", "PartSum", "Settings", "Turn"]
