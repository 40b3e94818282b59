"""Krum on directions: the mean of the updates that point where the others do and are not much longer."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fcil.core.aggregate import Aggregate, register_aggregator
from fcil.core.messages import ModelState, Report
from fcil.core.registry import Member
from fcil.federation.aggregation.claims import ClaimSettings, all_row_weights
from fcil.federation.aggregation.holding import HoldingAggregator, shortened, update_products
from fcil.federation.aggregation.krum import mean_of_kept, share_of
from fcil.federation.reply_checks import RUNNING
from fcil.maths.robust import cosine_distances, krum_scores, lower_median, shared_distances

ALIKE = 0.05  # one minus the cosine, below which two updates have the same direction
LENGTH = 3.0  # median lengths, beyond which an update stands out


class CosineKrumSettings(ClaimSettings):
    """The table `[federation.cosine-krum]`."""

    hostile: float = Field(0.2, ge=0, lt=0.5, description="share of the reports, rounded down, that may be left out")
    margin: float = Field(1.25, gt=0, description="scores above this times the median are left out")


class CosineKrum(HoldingAggregator[CosineKrumSettings]):
    """The mean without the f reports that differ most from the others in direction or length, if these stand out.

    A score is Krum's, of one minus cosines. It sees neither rows, in which clients differ rightly, nor batch norm's
    running statistics, whose changes outweigh those of parameters and hide them; a report's changes of these have the
    median norm at most. Where reports are rows alone, directions are compared in the rows that both hold.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"averaging"})

    def combine(self, sent: ModelState, reports: Mapping[int, Report]) -> Aggregate:
        found = [*reports.values()]
        counted = dict.fromkeys(name for report in found for name in report.rows)
        floats = [name for name, base in sent.items() if base.dtype.is_floating_point and name not in counted]
        running = [name for name in floats if RUNNING in name]
        trained = [name for name in floats if name not in running]
        excluded = self._excluded(sent, reports, trained, [*counted])
        kept = [report for client, report in reports.items() if client not in excluded]
        models = shortened(sent, [report.model for report in kept], trained, LENGTH)
        for name in running:
            models = shortened(sent, models, [name], 1.0)
        kept = [replace(report, model=model) for report, model in zip(kept, models, strict=True)]
        return mean_of_kept(sent, kept, excluded, self.settings.averaging == "samples", self.own)

    def _excluded(
        self, sent: ModelState, reports: Mapping[int, Report], trained: Sequence[str], counted: Sequence[str]
    ) -> dict[int, str]:
        """Return the clients whose reports are left out, with reasons."""
        found, most = [*reports.values()], share_of(len(reports), self.own.hostile)
        products = update_products(sent, [report.model for report in found], sent.keys() - {*trained})
        distances = cosine_distances(products) if trained else self._row_distances(sent, found, counted)
        scores = krum_scores(distances.clamp(min=ALIKE), most)
        turned = scores / statistics.median(scores.tolist())
        lengths = products.diagonal().sqrt()
        longer = lengths / lower_median(lengths).clamp(min=torch.finfo(torch.float64).tiny)
        doubts = torch.maximum(turned / self.own.margin, longer / LENGTH).tolist()
        farthest = sorted(range(len(found)), key=lambda place: doubts[place], reverse=True)[:most]
        clients = [*reports]
        return {
            clients[place]: _reason(float(turned[place]), float(longer[place]))
            for place in sorted(farthest)
            if doubts[place] > 1
        }

    def _row_distances(self, sent: ModelState, reports: Sequence[Report], counted: Sequence[str]) -> Tensor:
        held = all_row_weights(reports, self.own)
        total = torch.zeros(len(reports), len(reports), dtype=torch.float64)
        for name in counted:
            if sent[name].ndim > 1:  # a single number has no direction
                updates = torch.stack([report.model[name].double() - sent[name].double() for report in reports])
                total += shared_distances(F.normalize(updates.flatten(2), dim=2), held[name] > 0) / 2
        return total


def _reason(turned: float, longer: float) -> str:
    return (
        f"its update differs from the others: {turned:.3g} times the median score of directions, "
        f"{longer:.3g} times the median length"
    )


register_aggregator(
    Member(
        "cosine-krum",
        "the mean of the updates whose direction is closest to the others'",
        CosineKrum,
        CosineKrumSettings,
    )
)
