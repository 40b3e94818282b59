"""Scaling: the update is sent many times as large."""

from __future__ import annotations

from pydantic import Field

from fcil.core.messages import ModelState, Report
from fcil.core.registry import Member
from fcil.core.settings_table import SettingsTable
from fcil.federation.attacks.base import Attack, moved, register_attack


class ScaleSettings(SettingsTable):
    """The table `[attack.scale]`."""

    factor: float = Field(10.0, description="on the update")


class Scale(Attack):
    """Trains honestly, and sends the update times a factor."""

    def __init__(self, own: ScaleSettings, seed: int) -> None:
        super().__init__(own, seed)
        self.factor = own.factor

    def report(self, report: Report, sent: ModelState, seed: int) -> Report:
        return moved(report, sent, self.factor)


register_attack(Member("scale", "the update times a factor", Scale, ScaleSettings))
