"""False counts: an honest model with a claim of many samples of every class."""

from __future__ import annotations

from dataclasses import replace

import torch

from fcil.core.messages import ModelState, Report
from fcil.core.registry import Member
from fcil.federation.attacks.base import Attack, register_attack

CLAIMED = 1_000_000  # samples in all, as many as federation.max_samples allows by default: more would be refused


class FalseCounts(Attack):
    """Trains honestly, and claims so many samples of every class that it outweighs all others."""

    def report(self, report: Report, sent: ModelState, seed: int) -> Report:
        classes = max((len(weights) for weights in report.rows.values()), default=1)
        each = max(CLAIMED // max(classes, 1), 1)
        rows = {name: torch.full_like(weights, each) for name, weights in report.rows.items()}
        return replace(report, samples=max(each * classes, 1), rows=rows)


register_attack(Member("false-counts", "a claim of many samples of every class", FalseCounts))
