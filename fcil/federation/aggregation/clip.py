"""The mean of updates of a bounded norm, summed while reports come in (Sun et al., 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fcil.core.aggregate import Aggregate, Aggregator, Gathering, Need, Settings, register_aggregator
from fcil.core.messages import ModelState, Report, Weighted
from fcil.core.registry import Member
from fcil.federation.aggregation.claims import ClaimSettings, bounded_parts, row_weights
from fcil.federation.aggregation.holding import counter, weighted_mean
from fcil.maths.robust import lower_median


class ClipSettings(ClaimSettings):
    """The table `[federation.clip]`."""

    norm: float | None = Field(
        None,
        gt=0,
        description="largest norm of an update; absent: all have the median norm",
    )


class Clip(Aggregator):
    """The mean of bounded updates; memory does not grow with the participants, but for rows, counters and parts."""

    serves: ClassVar[frozenset[Need]] = frozenset({"rows", "parts"})

    def __init__(self, settings: Settings, own: ClipSettings) -> None:
        super().__init__(settings, own)
        self.own = own

    def gather(self, sent: ModelState, round: int, participants: Sequence[int]) -> Gathering:
        return _Clipped(sent, self.own)


class _Clipped(Gathering):
    """The sum of scaled updates, and the few numbers of each report that are compared at the end."""

    def __init__(self, sent: ModelState, own: ClipSettings) -> None:
        self.sent, self.own = sent, own
        self.totals: dict[str, Tensor] = {}
        self.norms: list[float] = []
        self.held: dict[str, list[Tensor]] = {}  # scaled rows with weights of their own, and counters
        self.claims: dict[str, list[Tensor]] = {}
        self.parts: list[dict[str, Weighted]] = []

    def add(self, client: int, report: Report) -> None:
        floats = [name for name, base in self.sent.items() if base.dtype.is_floating_point]
        update = {name: report.model[name].double() - self.sent[name].double() for name in floats}
        norm = float(torch.stack([value.norm() for value in update.values()]).norm())
        self.norms.append(norm)
        scale = self._scale(norm)
        for name, value in update.items():
            if name in report.rows:
                self.held.setdefault(name, []).append(value * scale)
                self.claims.setdefault(name, []).append(report.rows[name].clone())
            elif name in self.totals:
                self.totals[name].add_(value, alpha=scale)
            else:
                self.totals[name] = value * scale
        for name in self.sent.keys() - update.keys():
            self.held.setdefault(name, []).append(report.model[name].clone())
        self.parts.append(
            {name: Weighted(part.value.clone(), part.weight.clone()) for name, part in report.parts.items()}
        )

    def _scale(self, norm: float) -> float:
        if self.own.norm is None:
            return 1 / norm if norm > 0 else 0.0
        return min(1.0, self.own.norm / norm) if norm > 0 else 1.0

    def result(self) -> Aggregate:
        count = len(self.norms)
        if not count:
            return Aggregate(self.sent, 0)
        norms = torch.tensor(self.norms, dtype=torch.float64)
        length = float(lower_median(norms)) if self.own.norm is None else 1.0
        rows = {name: row_weights(claims, self.own) for name, claims in self.claims.items()}
        model = {name: self._tensor(name, base, length, rows.get(name)) for name, base in self.sent.items()}
        return Aggregate(model, count, {name: each.sum(0) for name, each in rows.items()}, bounded_parts(self.parts))

    def _tensor(self, name: str, base: Tensor, length: float, weights: Tensor | None) -> Tensor:
        if not base.dtype.is_floating_point:
            return counter(self.held[name])
        if weights is None:
            step = self.totals[name] / len(self.norms)
        else:
            step = weighted_mean(torch.ones(len(weights), dtype=torch.float64))(torch.stack(self.held[name]), weights)
        return (base.double() + length * step).to(base.dtype)


register_aggregator(Member("clip", "the mean of updates of a bounded norm", Clip, ClipSettings))
