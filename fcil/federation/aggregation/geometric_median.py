"""The geometric median of the models, by smoothed Weiszfeld steps (RFA, Pillutla et al., 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fcil.core.aggregate import Aggregate, register_aggregator
from fcil.core.messages import ModelState, Report
from fcil.core.registry import Member
from fcil.federation.aggregation.claims import ClaimSettings, all_row_weights, bounded_parts, sample_weights
from fcil.federation.aggregation.holding import HoldingAggregator, middle_model, update_products, weighted_mean
from fcil.maths.robust import weiszfeld

SMOOTHING, ITERATIONS = 1e-6, 64  # the distance below which a model gains no more weight; steps at most


class GeometricMedianSettings(ClaimSettings):
    """The table `[federation.geometric-median]`."""


class GeometricMedian(HoldingAggregator[GeometricMedianSettings]):
    """The geometric median of whole models, and of each row over its holders; parts are clipped to the median norm."""

    reads: ClassVar[frozenset[str]] = frozenset({"averaging"})

    def combine(self, sent: ModelState, reports: Mapping[int, Report]) -> Aggregate:
        found = [*reports.values()]
        models = [report.model for report in found]
        rows = all_row_weights(found, self.own)
        weights = sample_weights(found, self.settings.averaging == "samples")
        products = update_products(sent, models, rows)
        whole = weighted_mean(weiszfeld(products, weights, SMOOTHING, ITERATIONS))

        def middle(values: Tensor, held: Tensor | None) -> Tensor:
            return whole(values, None) if held is None else median_rows(values, weights[:, None] * held)

        model = middle_model(sent, models, rows, middle)
        sums = {name: (weights[:, None] * each).sum(0) for name, each in rows.items()}
        return Aggregate(model, len(found), sums, bounded_parts([report.parts for report in found]))


def median_rows(values: Tensor, weights: Tensor) -> Tensor:
    """Return the geometric median of each row from values (reports, rows, ...) and weights (reports, rows)."""
    flat = values.reshape(*weights.shape, -1)
    products = torch.einsum("irf,jrf->rij", flat, flat)
    found = weiszfeld(products, weights.T, SMOOTHING, ITERATIONS)
    return torch.einsum("ri,irf->rf", found, flat).view(values.shape[1:])


register_aggregator(
    Member("geometric-median", "the point closest to all models (RFA)", GeometricMedian, GeometricMedianSettings)
)
