"""Silence: hostile clients take part and report nothing; the ceiling of an aggregator that leaves them out."""

from __future__ import annotations

from fcil.core.messages import ModelState, Report
from fcil.core.registry import Member
from fcil.federation.attacks.base import Attack, register_attack


class Silent(Attack):
    """Keeps the report back."""

    def report(self, report: Report, sent: ModelState, seed: int) -> None:
        return None


register_attack(Member("silent", "no report at all", Silent))
