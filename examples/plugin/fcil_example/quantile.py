"""An aggregator: a quantile of each number over the participants, the median by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field

from fcil.core.aggregate import Aggregate, Need, register_aggregator
from fcil.core.messages import ModelState, Report
from fcil.core.registry import Member
from fcil.core.settings_table import SettingsTable
from fcil.federation.aggregation.holding import HoldingAggregator


class QuantileSettings(SettingsTable):
    """The table `[federation.quantile]`."""

    share: float = Field(0.5, ge=0, le=1, description="of the participants below the value; 0.5 is the median")


class Quantile(HoldingAggregator[QuantileSettings]):
    """It weighs no participant, so it reads no common setting and cannot sum rows or parts."""

    serves: ClassVar[frozenset[Need]] = frozenset()

    def combine(self, sent: ModelState, reports: Mapping[int, Report]) -> Aggregate:
        """Return the quantile of at least one report."""
        model = {}
        for name, base in sent.items():
            values = torch.stack([report.model[name] for report in reports.values()]).double()
            found = values.quantile(self.own.share, dim=0)
            model[name] = (found if base.dtype.is_floating_point else found.round()).to(base.dtype)
        return Aggregate(model, len(reports))


register_aggregator(Member("quantile", "a quantile of each number over the participants", Quantile, QuantileSettings))
