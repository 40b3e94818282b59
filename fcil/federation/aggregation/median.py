"""The coordinate-wise median of the models (Yin et al., 2018)."""

from __future__ import annotations

from collections.abc import Mapping

from fcil.core.aggregate import Aggregate, register_aggregator
from fcil.core.messages import ModelState, Report
from fcil.core.registry import Member
from fcil.federation.aggregation.claims import ClaimSettings
from fcil.federation.aggregation.holding import HoldingAggregator
from fcil.federation.aggregation.trimmed_mean import trimmed
from fcil.maths.robust import MEDIAN


class MedianSettings(ClaimSettings):
    """The table `[federation.median]`."""


class Median(HoldingAggregator[MedianSettings]):
    """The median of each number, of a row over its holders; parts are clipped to the median norm."""

    def combine(self, sent: ModelState, reports: Mapping[int, Report]) -> Aggregate:
        return trimmed(sent, reports, MEDIAN, self.own)


register_aggregator(Member("median", "the median of each number over the participants", Median, MedianSettings))
