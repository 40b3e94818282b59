"""The work of a site or the proxy in a round, which ends when its owner's limit of seconds is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fcil.core.errors import FederationError
from fcil.core.pulse import PULSE
from fcil.models.trainer import Loss, Trainer

if TYPE_CHECKING:
    from fcil.data.samples import Samples
    from fcil.models.classifier import Classifier
    from fcil.models.optimiser import Optimiser


class OvertimeError(FederationError):
    """A round's work takes longer than the owner allows."""


class TimedTrainer(Trainer):
    """A trainer that looks at the clock in every step of long work, and whenever it is asked for images."""

    seconds: float = float("inf")
    until: float = float("inf")

    @classmethod
    def of(cls, machine: Trainer, seconds: float) -> TimedTrainer:
        """Return a trainer like this one, with a limit of seconds per round."""
        timed = cls(machine.model, machine.train, str(machine.device), machine.frozen.store)
        timed.seconds = seconds
        return timed

    def begin(self) -> None:
        """Begin a round, whose seconds count from now."""
        self.until = time.monotonic() + self.seconds

    def images(self, samples: Samples, indices: Tensor) -> Tensor:
        self.tick()
        return super().images(samples, indices)

    def inputs(self, net: Classifier, samples: Samples, indices: Tensor, flipped: bool = False) -> Tensor:
        self.tick()
        return super().inputs(net, samples, indices, flipped)

    def fit(
        self,
        net: Classifier,
        samples: Samples,
        indices: Tensor,
        loss: Loss,
        rates: Sequence[float],
        seed: int,
        optimiser: Optimiser | None = None,
        epoch: Callable[[torch.Generator], list[Tensor]] | None = None,
    ) -> float:
        def timed(images: Tensor, rows: Tensor) -> Tensor:
            self.tick()
            return loss(images, rows)

        return super().fit(net, samples, indices, timed, rates, seed, optimiser, epoch)

    def tick(self) -> None:
        PULSE.beat()
        if time.monotonic() > self.until:
            raise OvertimeError(f"the round takes longer than this party's limit seconds, {self.seconds:g}")
