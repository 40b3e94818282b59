"""Sign flip: the update is sent in the opposite direction."""

from __future__ import annotations

from fcil.core.messages import ModelState, Report
from fcil.core.registry import Member
from fcil.federation.attacks.base import Attack, moved, register_attack


class SignFlip(Attack):
    """Trains honestly, and sends the model that was received minus what was learned."""

    def report(self, report: Report, sent: ModelState, seed: int) -> Report:
        return moved(report, sent, -1.0)


register_attack(Member("sign-flip", "the update in the opposite direction", SignFlip))
