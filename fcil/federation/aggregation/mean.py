"""Federated averaging: the mean of the models, uniform or by samples, summed while reports come in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from fcil.core.aggregate import Aggregate, Aggregator, Gathering, Need, PartSum, register_aggregator, weighted
from fcil.core.messages import ModelState, Report
from fcil.core.registry import Member
from fcil.maths.averaging import RunningMean


class Mean(Aggregator):
    """The weighted mean of models, of rows and of parts."""

    serves: ClassVar[frozenset[Need]] = frozenset({"rows", "parts", "exact parts"})
    reads: ClassVar[frozenset[str]] = frozenset({"averaging"})

    def gather(self, sent: ModelState, round: int, participants: Sequence[int]) -> Gathering:
        by_samples = self.settings.averaging == "samples"
        return _Sums(sent, lambda report: float(report.samples) if by_samples else 1.0)


class _Sums(Gathering):
    """One model's worth of sums, however many reports come."""

    def __init__(self, sent: ModelState, weigh: Callable[[Report], float]) -> None:
        self.sent = sent
        self.weigh = weigh
        self.models = RunningMean()
        self.rows: set[str] = set()
        self.parts: dict[str, PartSum] = {}

    def add(self, client: int, report: Report) -> None:
        self.models.add(report.model, self.weigh(report), report.rows)
        self.rows |= report.rows.keys()
        for name, part in report.parts.items():
            if name in self.parts:
                self.parts[name].add(part)
            else:
                self.parts[name] = PartSum(weighted(part), part.weight.clone())

    def result(self) -> Aggregate:
        if not self.models.count:
            return Aggregate(self.sent, 0)
        rows = {name: self.models.weight(name) for name in self.rows}
        return Aggregate(self.models.result(self.sent), self.models.count, rows, self.parts)


register_aggregator(Member("mean", "the mean of the models, uniform or by samples", Mean))
