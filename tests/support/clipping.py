"""An aggregator of another package: it clips at the client, and the server may not look at single reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch

from fcil.core.messages import ModelState, Report
from fcil.core.registry import Member
from fcil.federation.aggregation import Aggregator, Gathering, Mean, Turn, register_aggregator

NAME, BOUND = "clipping", 0.01


class Clipping(Aggregator):
    """The mean of models that are at most BOUND away from the one that was sent, in each number."""

    inspects: ClassVar[bool] = False
    seeds: ClassVar[list[int]] = []  # with which clients staged their reports in this process

    def stage(self, report: Report, sent: ModelState, turn: Turn) -> Report:
        self.seeds.append(turn.seed)
        clipped = {
            name: torch.clamp(value, sent[name] - BOUND, sent[name] + BOUND) if value.is_floating_point() else value
            for name, value in report.model.items()
        }
        return replace(report, model=clipped)

    def gather(self, sent: ModelState, round: int, participants: Sequence[int]) -> Gathering:
        return Mean(self.settings).gather(sent, round, participants)


MEMBER = Member[type[Aggregator]](NAME, "the mean of models that are clipped at the clients", Clipping)
register_aggregator(MEMBER)
