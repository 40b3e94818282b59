"""The trimmed mean: number by number, without the largest and the smallest values (Yin et al., 2018)."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field
from torch import Tensor

from fcil.core.aggregate import Aggregate, register_aggregator
from fcil.core.messages import ModelState, Report
from fcil.core.registry import Member
from fcil.federation.aggregation.claims import ClaimSettings, all_row_weights, bounded_parts
from fcil.federation.aggregation.holding import HoldingAggregator, middle_model
from fcil.maths.robust import trimmed_mean


class TrimmedMeanSettings(ClaimSettings):
    """The table `[federation.trimmed-mean]`."""

    hostile: float = Field(0.2, ge=0, lt=0.5, description="share cut at either end, rounded up")


def trimmed(sent: ModelState, reports: Mapping[int, Report], share: float, own: ClaimSettings) -> Aggregate:
    """Return the mean without a share of the largest and smallest values; a row of the head counts its holders."""
    found = [*reports.values()]
    rows = all_row_weights(found, own)

    def middle(values: Tensor, weights: Tensor | None) -> Tensor:
        return trimmed_mean(values, share, None if weights is None else weights > 0)

    model = middle_model(sent, [report.model for report in found], rows, middle)
    parts = bounded_parts([report.parts for report in found])
    return Aggregate(model, len(found), {name: each.sum(0) for name, each in rows.items()}, parts)


class TrimmedMean(HoldingAggregator[TrimmedMeanSettings]):
    """The trimmed mean of models and of rows over their holders; parts are clipped to the median norm."""

    def combine(self, sent: ModelState, reports: Mapping[int, Report]) -> Aggregate:
        return trimmed(sent, reports, self.own.hostile, self.own)


register_aggregator(
    Member("trimmed-mean", "the mean without the extremes of each number", TrimmedMean, TrimmedMeanSettings)
)
