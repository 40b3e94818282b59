"""Multi-Krum: the mean of the reports that lie closest to the others (Blanchard et al., 2017)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fcil.core.aggregate import Aggregate, register_aggregator
from fcil.core.messages import ModelState, Report
from fcil.core.registry import Member
from fcil.federation.aggregation.claims import (
    ClaimSettings,
    all_row_weights,
    bounded_parts,
    bounded_rows,
    sample_weights,
)
from fcil.federation.aggregation.holding import HoldingAggregator, middle_model, update_products, weighted_mean
from fcil.maths.robust import krum_scores, shared_distances, squared_distances


class KrumSettings(ClaimSettings):
    """The table `[federation.krum]`."""

    hostile: float = Field(0.2, ge=0, lt=0.5, description="share of the reports, rounded down, that may be left out")
    margin: float = Field(1.5, ge=0, description="scores above this times the median are left out")


class Krum(HoldingAggregator[KrumSettings]):
    """The mean of models, rows and parts without the f reports with the highest scores, as far as these stand out.

    Scores do not see rows, in which clients differ rightly; so a row's update has the median norm of its holders at
    most. Where reports are rows alone, as on a frozen backbone, they are compared in the rows that both hold.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"averaging"})

    def combine(self, sent: ModelState, reports: Mapping[int, Report]) -> Aggregate:
        scores = dict(zip(reports, self._scores(sent, [*reports.values()]).tolist(), strict=True))
        farthest = sorted(scores, key=lambda client: scores[client], reverse=True)[
            : share_of(len(reports), self.own.hostile)
        ]
        median = statistics.median(scores.values())
        excluded = {
            client: _reason(scores[client], median) for client in farthest if scores[client] > self.own.margin * median
        }
        kept = [report for client, report in reports.items() if client not in excluded]
        return mean_of_kept(sent, kept, excluded, self.settings.averaging == "samples", self.own)

    def _scores(self, sent: ModelState, reports: list[Report]) -> Tensor:
        counted = dict.fromkeys(name for report in reports for name in report.rows)
        if any(base.dtype.is_floating_point for name, base in sent.items() if name not in counted):
            distances = squared_distances(update_products(sent, [report.model for report in reports], counted))
        else:
            distances = self._row_distances(sent, reports, [*counted])
        return krum_scores(distances, share_of(len(reports), self.own.hostile))

    def _row_distances(self, sent: ModelState, reports: list[Report], counted: list[str]) -> Tensor:
        held = all_row_weights(reports, self.own)
        total = torch.zeros(len(reports), len(reports), dtype=torch.float64)
        for name in counted:
            updates = torch.stack([report.model[name].double() - sent[name].double() for report in reports])
            total += shared_distances(updates[..., None], held[name] > 0)
        return total


def share_of(reports: int, share: float) -> int:
    """Return a share of so many reports, rounded down."""
    return int(reports * share + 1e-9)


def mean_of_kept(
    sent: ModelState, kept: Sequence[Report], excluded: Mapping[int, str], by_samples: bool, own: ClaimSettings
) -> Aggregate:
    """Return the mean of the reports that are not left out; claims, rows and parts are bounded."""
    weights, rows = sample_weights(kept, by_samples), all_row_weights(kept, own)
    mean = weighted_mean(weights)

    def middle(values: Tensor, held: Tensor | None) -> Tensor:
        return mean(values if held is None else bounded_rows(values, held), held)

    model = middle_model(sent, [report.model for report in kept], rows, middle)
    sums = {name: (weights[:, None] * each).sum(0) for name, each in rows.items()}
    return Aggregate(model, len(kept), sums, bounded_parts([report.parts for report in kept]), excluded)


def _reason(score: float, median: float) -> str:
    return f"its model is among the farthest from the others (Krum score {score:.3g}, the median is {median:.3g})"


register_aggregator(Member("krum", "the mean of the reports closest to the others (multi-Krum)", Krum, KrumSettings))
