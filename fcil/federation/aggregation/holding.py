"""Aggregators that compare reports with each other: all of a round are kept until its end."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from fcil.core.aggregate import Aggregate, Aggregator, Gathering, Need, Settings, by_row
from fcil.core.messages import ModelState, Report, Weighted
from fcil.core.settings_table import SettingsTable
from fcil.maths.robust import MEDIAN, inner_products, lower_median, trimmed_mean

Own = TypeVar("Own", bound=SettingsTable)
Combine = Callable[[ModelState, Mapping[int, Report]], Aggregate]
Middle = Callable[[Tensor, Tensor | None], Tensor]  # of values (reports, ...) and the weights (reports, rows) of rows


class HoldingAggregator(Aggregator, Generic[Own]):
    """An aggregator that is given all reports of a round at once, by client."""

    serves: ClassVar[frozenset[Need]] = frozenset({"rows", "parts"})
    holds: ClassVar[bool] = True

    def __init__(self, settings: Settings, own: Own) -> None:
        super().__init__(settings, own)
        self.own = own

    def gather(self, sent: ModelState, round: int, participants: Sequence[int]) -> Gathering:
        return Held(sent, self.combine)

    @abstractmethod
    def combine(self, sent: ModelState, reports: Mapping[int, Report]) -> Aggregate:
        """Return the aggregate of at least one report."""


class Held(Gathering):
    """Copies of a round's reports, by client."""

    def __init__(self, sent: ModelState, combine: Combine) -> None:
        self.sent, self.combine = sent, combine
        self.reports: dict[int, Report] = {}

    def add(self, client: int, report: Report) -> None:
        model = {name: value.clone() for name, value in report.model.items()}
        rows = {name: value.clone() for name, value in report.rows.items()}
        parts = {name: Weighted(part.value.clone(), part.weight.clone()) for name, part in report.parts.items()}
        self.reports[client] = Report(model, report.samples, rows, parts)

    def result(self) -> Aggregate:
        return self.combine(self.sent, self.reports) if self.reports else Aggregate(self.sent, 0)


def middle_model(
    sent: ModelState, models: Sequence[ModelState], rows: Mapping[str, Tensor], middle: Middle
) -> ModelState:
    """Return the model that `middle` makes of the updates, tensor by tensor, in double precision.

    Counters, which are whole numbers, have the median of the reports. A row without weight stays as it was sent.
    """
    return {
        name: _middle(base, [model[name] for model in models], rows.get(name), middle) for name, base in sent.items()
    }


def _middle(base: Tensor, found: Sequence[Tensor], weights: Tensor | None, middle: Middle) -> Tensor:
    if not base.dtype.is_floating_point:
        return counter(found)
    start = base.double()
    step = middle(torch.stack([value.double() - start for value in found]), weights)
    if weights is not None:
        step = torch.where(by_row(weights.sum(0) > 0, step), step, 0.0)
    return _moved(base, step)


def counter(found: Sequence[Tensor]) -> Tensor:
    """Return the median of integer tensors, number by number; of two middle ones their mean, rounded."""
    return trimmed_mean(torch.stack(list(found)).double(), MEDIAN).round().to(found[0].dtype)


def update_products(sent: ModelState, models: Sequence[ModelState], without: Container[str]) -> Tensor:
    """Return the inner product of each two updates over all tensors of floats but those `without`.

    Rows with weights of their own are left out: clients that hold different classes differ there rightly.
    """
    names = [name for name, base in sent.items() if base.dtype.is_floating_point and name not in without]
    total = torch.zeros(len(models), len(models), dtype=torch.float64)
    for name in names:
        total += inner_products(torch.stack([model[name].double() - sent[name].double() for model in models]))
    return total


def shortened(sent: ModelState, models: Sequence[ModelState], names: Sequence[str], most: float) -> list[ModelState]:
    """Return models whose update of these tensors, taken together, is at most so many times as long as the median."""
    updates = [{name: model[name].double() - sent[name].double() for name in names} for model in models]
    lengths = torch.stack([_length(update) for update in updates])
    factors = most * lower_median(lengths) / lengths
    return [
        model if not factor < 1 else {**model, **{name: _moved(sent[name], update[name] * factor) for name in names}}
        for model, update, factor in zip(models, updates, factors, strict=True)
    ]


def _length(update: ModelState) -> Tensor:
    lengths = [torch.zeros((), dtype=torch.float64), *(value.norm() for value in update.values())]
    total: Tensor = torch.stack(lengths).norm()
    return total


def _moved(base: Tensor, step: Tensor) -> Tensor:
    return (base.double() + step).to(base.dtype)


def weighted_mean(weights: Tensor) -> Middle:
    """Return the mean by the weights of the reports, times those of their rows."""

    def middle(values: Tensor, rows: Tensor | None) -> Tensor:
        each = weights[:, None] * rows if rows is not None else weights
        total = (values * each.view(*each.shape, *[1] * (values.ndim - each.ndim))).sum(0)
        sums = each.sum(0)
        return total / by_row(torch.where(sums > 0, sums, 1.0), total)

    return middle
