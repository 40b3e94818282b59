"""Gradient descent as a method's authors ran it: SGD with a schedule that fits runs of any length, and Adam."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import Field
from torch import nn

from fcil.core.settings_table import SettingsTable

Clock = Literal["growth", "round"]


class Milestone(SettingsTable):
    """From an epoch of the block on, the learning rate is divided."""

    epoch: int = Field(ge=1, description="local epochs accumulated since the newest block of classes began")
    divisor: float = Field(gt=0, description="divisor of the initial learning rate")


def milestones(*pairs: tuple[int, float]) -> tuple[Milestone, ...]:
    """Return milestones from pairs of epoch and divisor."""
    return tuple(Milestone(epoch=epoch, divisor=divisor) for epoch, divisor in pairs)


@dataclass(frozen=True)
class Optimiser:
    """SGD with its schedule; `epochs` is the length of the block that the milestones and the cosine were made for."""

    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    milestones: tuple[Milestone, ...] = ()
    epochs: int | None = None
    cosine: bool = False  # from the learning rate to its last share over the block
    exponential: bool = False  # the same, by equal factors
    last: float = 0.0  # share of the learning rate that such a schedule ends with
    by_block: bool = False  # the learning rate is divided by the number of blocks so far
    clamp: float | None = None  # largest entry of a gradient
    limit: float | None = None  # largest norm of a gradient over all parameters

    def over(self, epochs: int) -> Optimiser:
        """Return the optimiser with its schedule stretched or shrunk to blocks of that many epochs.

        >>> PAPER.over(20).milestones[0].epoch  # half way, as 100 of 200
        10
        """
        if self.epochs is None:
            return self
        moved = [
            milestone.model_copy(update={"epoch": max(1, round(milestone.epoch * epochs / self.epochs))})
            for milestone in self.milestones
        ]
        return replace(self, milestones=tuple(moved), epochs=epochs)

    def rates(self, epochs: int, rounds_since_growth: int, blocks: int = 1, clock: Clock = "growth") -> list[float]:
        """Return the learning rate of each of the `epochs` local epochs of a round.

        On the clock `growth` a milestone holds for the rest of the block; on `round`, as in GLFC's released code, only
        for the rest of the round in which it falls.
        """
        first = rounds_since_growth * epochs
        since = 0 if clock == "growth" else first
        base = self.learning_rate / (max(blocks, 1) if self.by_block else 1)
        rates = []
        for epoch in range(first, first + epochs):
            reached = [(drop.epoch, drop.divisor) for drop in self.milestones if since <= drop.epoch <= epoch]
            divisor = max(reached)[1] if reached else 1.0
            rates.append(base / divisor * self._annealed(epoch))
        return rates

    def _annealed(self, epoch: int) -> float:
        """Return the schedule's share of the learning rate; a block longer than planned goes on at the last one's."""
        if not (self.cosine or self.exponential) or not self.epochs:
            return 1.0
        along = min(epoch, self.epochs - 1) / self.epochs
        if self.exponential:
            share: float = self.last**along
            return share
        return self.last + (1 - self.last) * (1 + math.cos(math.pi * along)) / 2


class Descent:
    """The steps of `torch.optim.SGD`, bit for bit, with a rate that is given to each.

    Torch's optimisers load its compiler when the first one is made. That takes longer than many a round of a small run
    and is paid again by every worker.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        self.parameters = list(parameters)
        self.momentum, self.weight_decay = momentum, weight_decay
        self._velocities: dict[int, torch.Tensor] = {}

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Move every parameter that has a gradient against it; the gradients are used up."""
        moved: dict[int, torch.Tensor] = {n: one for n, one in enumerate(self.parameters) if one.grad is not None}
        parameters, directions = list(moved.values()), [one.grad for one in moved.values() if one.grad is not None]
        if not parameters:
            return
        if self.weight_decay:
            torch._foreach_add_(directions, parameters, alpha=self.weight_decay)
        if self.momentum:
            for number in moved.keys() - self._velocities.keys():
                self._velocities[number] = torch.zeros_like(moved[number])
            velocities = [self._velocities[number] for number in moved]
            torch._foreach_mul_(velocities, self.momentum)
            torch._foreach_add_(velocities, directions)
            directions = velocities
        torch._foreach_add_(parameters, directions, alpha=-rate)


def limit_norm(parameters: Iterable[nn.Parameter], most: float) -> None:
    """Do what `torch.nn.utils.clip_grad_norm_` does, bit for bit, in half the time for a small network."""
    gradients = [one.grad for one in parameters if one.grad is not None]
    if not gradients:
        return
    norm = torch.linalg.vector_norm(torch.stack(list(torch._foreach_norm(gradients))))
    scale = torch.clamp(most / (norm + 1e-6), max=1.0)
    if scale.device.type != "cpu" or scale.item() != 1:  # a device would have to be waited for
        torch._foreach_mul_(gradients, scale)


class Adam:
    """The steps of `torch.optim.Adam`, bit for bit, with a rate that is given to each; why not torch's: see Descent."""

    def __init__(
        self, parameters: Iterable[torch.Tensor], betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8
    ) -> None:
        self.parameters = list(parameters)
        self.betas, self.epsilon = betas, epsilon
        self._steps = 0
        self._means = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._squares = [torch.zeros_like(parameter) for parameter in self.parameters]

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Move every parameter against its mean gradient, by about the rate; all of them must have a gradient."""
        self._steps += 1
        first, second = self.betas
        scale, root = 1 - first**self._steps, math.sqrt(1 - second**self._steps)
        for parameter, mean, square in zip(self.parameters, self._means, self._squares, strict=True):
            assert parameter.grad is not None
            mean.lerp_(parameter.grad, 1 - first)
            square.mul_(second).addcmul_(parameter.grad, parameter.grad, value=1 - second)
            parameter.addcdiv_(mean, (square.sqrt() / root).add_(self.epsilon), value=-rate / scale)


PUBLISHED_MILESTONES = milestones((100, 5), (150, 25), (180, 125))
PAPER = Optimiser(2.0, weight_decay=1e-5, milestones=PUBLISHED_MILESTONES, epochs=200)  # GLFC's, "to train all models"
GENTLE = replace(PAPER, learning_rate=0.2)  # a softmax cross-entropy, not averaged over outputs, has larger gradients
COSINE = Optimiser(0.05, 0.9, 5e-4, epochs=20, cosine=True)  # Mosaic's own
NATIVE = Optimiser(0.1, 0.9, 5e-4, milestones((80, 10), (120, 100)), epochs=160)  # unless a method's source has another
