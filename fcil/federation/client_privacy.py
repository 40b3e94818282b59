"""Differential privacy of whole clients (McMahan et al., 2018): updates of a bounded length, and noise in their sum.

Every client takes part in a round by itself, with a probability that all know, and the sum is divided by the number of
clients that is expected. The server adds the noise or, where sums are masked, each participant adds a share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fcil.core.aggregate import Aggregate, Aggregator, Gathering, Turn
from fcil.core.keystream import Keystream
from fcil.core.messages import ModelState, Report, RoundContext
from fcil.federation.masking.messages import Masks
from fcil.maths.accountant import NoisySteps, joined, noise_for, spent
from fcil.maths.gaussian_mechanism import normal
from fcil.methods.privacy import PrivacyConfig

if TYPE_CHECKING:
    from fcil.data.scenario.scenario import Scenario


@dataclass(frozen=True)
class ClientPrivacy:
    """The clients' privacy in a run whose rounds are known beforehand."""

    config: PrivacyConfig
    expected: int  # participants of a round
    clients: tuple[int, ...]  # that are there, by round

    @classmethod
    def of(cls, config: PrivacyConfig, expected: int, scenario: Scenario) -> ClientPrivacy | None:
        """Return the privacy of clients over all rounds of a scenario, where they are hidden."""
        if not config.on or config.unit != "client":
            return None
        return cls(config, expected, tuple(len(scenario.clients(number)) for number in range(scenario.rounds)))

    def rate(self, round: int) -> float:
        """Return the probability of a client to take part in a round."""
        return min(1.0, self.expected / max(self.clients[round], 1))

    @cached_property
    def noise(self) -> float:
        """Return the deviation of the sum's noise in units of the longest update: the least for all rounds."""
        assert self.config.epsilon is not None
        return noise_for(self.config.epsilon, self.config.delta, joined(self._uses(len(self.clients), 1.0)))

    def spent(self, rounds: int) -> float:
        """Return the epsilon of a client after so many rounds."""
        return spent(joined(self._uses(rounds, self.noise)), self.config.delta)

    def _uses(self, rounds: int, noise: float) -> tuple[NoisySteps, ...]:
        return tuple(NoisySteps(noise, self.rate(number), 1) for number in range(rounds))

    def drawn(self, present: Sequence[int], round: int, seed: int) -> list[int]:
        """Return the clients that train, each drawn by itself."""
        below = Keystream.of("participants", seed).below(1 << 53, len(present))
        return [client for client, found in zip(present, below, strict=True) if found < self.rate(round) * 2.0**53]

    def applied(self, sent: ModelState, aggregate: Aggregate, seed: int | None) -> Aggregate:
        """Return the aggregate as a sum over the expected number of clients; with noise, unless the clients add it."""
        share, draw = aggregate.reports / self.expected, Keystream.of("noise", seed or 0)
        deviation = 0.0 if seed is None else self.noise * self.config.clip / self.expected
        model = {
            name: (base.double() + (aggregate.model[name].double() - base.double()) * share).to(base.dtype)
            for name, base in sent.items()
        }
        if deviation:
            model = {name: with_noise(tensor, deviation, draw) for name, tensor in model.items()}
        return replace(aggregate, model={**aggregate.model, **model})


class ClippedReports(Aggregator):
    """An aggregator of updates that are at most `privacy.clip` long; of a report nothing but the update is left."""

    def __init__(self, inner: Aggregator, config: PrivacyConfig) -> None:
        super().__init__(inner.settings)
        self.inner, self.config = inner, config
        self.inspects, self.hides = inner.inspects, inner.hides  # type: ignore[misc]

    def stage(self, report: Report, sent: ModelState, turn: Turn) -> Report:
        model = clipped(report.model or sent, sent, self.config.clip)
        if isinstance(turn.masks, Masks):
            others = len(turn.masks.added) + len(turn.masks.subtracted)
            deviation = self.config.noise * self.config.clip / math.sqrt(self.config.honest(others))
            draw = Keystream.of("share", turn.seed)
            model = {name: with_noise(tensor, deviation, draw) for name, tensor in model.items()}
        return self.inner.stage(replace(report, model=model, samples=1), sent, turn)

    def open(self, sent: ModelState, context: RoundContext, participants: Sequence[int]) -> Gathering:
        return self.inner.open(sent, context, participants)

    def gather(self, sent: ModelState, round: int, participants: Sequence[int]) -> Gathering:
        return self.inner.gather(sent, round, participants)


def clipped(model: ModelState, sent: ModelState, most: float) -> ModelState:
    """Return a model whose update is scaled to a length of at most `most`; one that is not finite is none."""
    update = {name: model[name].double() - base.double() for name, base in sent.items()}
    length = math.sqrt(sum(float(value.square().sum()) for value in update.values()))
    if not math.isfinite(length):
        return dict(sent)
    scale = min(1.0, most / length) if length else 1.0
    return {name: (base.double() + scale * update[name]).to(base.dtype) for name, base in sent.items()}


def with_noise(tensor: Tensor, deviation: float, draw: Keystream) -> Tensor:
    """Return a tensor with Gaussian noise of a deviation."""
    noise = torch.from_numpy(normal(tensor.numel(), draw)).view(tensor.shape)
    return (tensor.double() + deviation * noise).to(tensor.dtype)
