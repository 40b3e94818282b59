"""An aggregator: a quantile of each number over the participants, the median by default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field

from fcil.core.aggregate import Aggregate, Aggregator, Gathering, Settings, register_aggregator
from fcil.core.messages import ModelState, Report
from fcil.core.registry import Member
from fcil.core.settings_table import SettingsTable


class QuantileSettings(SettingsTable):
    """The table `[federation.quantile]`."""

    share: float = Field(0.5, ge=0, le=1, description="of the participants below the value; 0.5 is the median")


class Quantile(Aggregator):
    """It weighs no participant, so it reads no common setting and cannot sum rows or parts."""

    holds: ClassVar[bool] = True

    def __init__(self, settings: Settings, own: QuantileSettings) -> None:
        super().__init__(settings, own)
        self.own = own

    def gather(self, sent: ModelState, round: int, participants: Sequence[int]) -> Gathering:
        """Begin a round in which this model was sent."""
        return Models(sent, self.own.share)


class Models(Gathering):
    """The models of one round; a quantile needs all of them."""

    def __init__(self, sent: ModelState, share: float) -> None:
        self.sent, self.share = sent, share
        self.models: list[ModelState] = []

    def add(self, client: int, report: Report) -> None:
        """Keep a copy: the report is only lent."""
        self.models.append({name: value.clone() for name, value in report.model.items()})

    def result(self) -> Aggregate:
        """Return the quantile; without a report, the model that was sent."""
        if not self.models:
            return Aggregate(self.sent, 0)
        return Aggregate({name: self._value(name) for name in self.sent}, len(self.models))

    def _value(self, name: str) -> torch.Tensor:
        values = torch.stack([model[name] for model in self.models]).double()
        found = values.quantile(self.share, dim=0)
        dtype = self.sent[name].dtype
        return (found if dtype.is_floating_point else found.round()).to(dtype)


register_aggregator(Member("quantile", "a quantile of each number over the participants", Quantile, QuantileSettings))
