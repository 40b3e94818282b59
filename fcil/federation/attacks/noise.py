"""Noise: the model is sent with large Gaussian noise."""

from __future__ import annotations

import torch

from fcil.core.messages import ModelState, Report, generator
from fcil.core.registry import Member
from fcil.federation.attacks.base import Attack, altered, register_attack

DEVIATION = 1.0  # of the noise on every number of the model


class Noise(Attack):
    """Adds noise to every number of the report's model but its counters."""

    def report(self, report: Report, sent: ModelState, seed: int) -> Report:
        draw = generator(seed)
        return altered(
            report,
            lambda _, value: value + DEVIATION * torch.randn(value.shape, generator=draw, dtype=value.dtype),
        )


register_attack(Member("noise", "the model with Gaussian noise", Noise))
