"""Differential privacy of sums over samples: one Gaussian mechanism per sample for the life of a federation.

Features have length one, so a sample changes G by 1 and its class's sum by 1, together by sqrt(2). Each sample is in
one batch and so in one release, however many rounds, tasks and models follow; nothing composes unless a batch is sent
again. The schedule of releases, their classes and their noise follow from public facts alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fcil.core.errors import FederationError
from fcil.core.keystream import Keystream
from fcil.core.messages import RoundContext
from fcil.maths.analytic import Sums, ridge_head, triangle
from fcil.maths.discrete_gaussian import LARGEST, discrete_gaussian
from fcil.maths.gaussian_mechanism import epsilon_of, noise_of, repeated
from fcil.methods.ledger import Batch, SampleLedger
from fcil.methods.privacy import PrivacyConfig

SENSITIVITY = math.sqrt(2)
FINEST = 2.0**-26  # quantum that a masked sum of G keeps
DAMPING = 4.0  # penalty, in deviations of a number of G times sqrt(features); below 2 nothing is left to solve
ENOUGH = 2.0  # images of a class, in lengths of the noise of its sum: a rule of thumb
ROUNDING = 1e-9  # of an epsilon
LEAST = 1e-6  # penalty
DISTANCE = 1 / 48  # between discrete and rounded Gaussian of scale s: total variation at most DISTANCE / s^2


@dataclass(frozen=True)
class SumsNoise:
    """The noise that one participant adds: whole numbers of a quantum, of these scales."""

    quantum: float
    full: int  # of G's diagonal and the class sums
    half: int  # of the rest of G, whose numbers stand for two each, so that their variance is half as large

    @property
    def variance(self) -> float:
        """Return the variance of a number of G off its diagonal."""
        return (self.half * self.quantum) ** 2


class NoisyRelease:
    """Sums with noise, as every participant sends them in the releases of a block, whether it has samples or not."""

    def __init__(self, config: PrivacyConfig) -> None:
        assert config.epsilon is not None
        self.config, self.epsilon = config, config.epsilon
        self.budget = config.most  # of an image

    def happens(self, context: RoundContext) -> bool:
        """Say whether a round is a release."""
        return context.classes > 0 and context.rounds_since_growth < self.config.releases

    def spent(self, ledger: SampleLedger) -> float:
        """Return the epsilon of the sample whose sums were sent most often."""
        return self._epsilon(max((len(batch.rounds) for batch in ledger.batches if len(batch.samples)), default=0))

    def check(self, batch: Batch) -> None:
        """Refuse to send a batch that is withdrawn, or, even an empty one, once more than the budget allows."""
        if batch.withdrawn:
            raise FederationError("with privacy.epsilon samples are not withdrawn: they would be sent a second time")
        spent = self._epsilon(len(batch.rounds))
        if spent > self.budget * (1 + ROUNDING):
            raise FederationError(
                f"the sums over {len(batch.samples)} samples would be sent {len(batch.rounds)} times, with epsilon "
                f"{spent:.3g} in all; privacy.budget allows {self.budget:g}"
            )

    def _epsilon(self, times: int) -> float:
        """Return the epsilon of a sample that is in so many releases."""
        noise = noise_of(self.epsilon, self.config.delta)
        return epsilon_of(repeated(noise, times), self.config.delta) if times else 0.0

    def noise(self, numbers: int, participants: int) -> SumsNoise:
        """Return the noise of each of the participants whose sum alone is learned, for reports of so many numbers.

        What is left if all may be silent who are said to be is enough. Sums are rounded to the quantum beforehand,
        which lets a sample change them by a little more; and discrete noise differs from rounded Gaussian noise by a
        little, which delta has room for.
        """
        honest = self.config.honest(participants)
        each = SENSITIVITY * noise_of(self.epsilon, self.config.delta) / math.sqrt(honest)
        quantum = max(2.0 ** (math.floor(math.log2(each)) - int(math.log2(LARGEST)) + 2), FINEST)
        # the rest of G has half the variance, hence the 2
        gap = 2 * (1 + math.exp(self.epsilon)) * numbers * DISTANCE * (quantum / each) ** 2
        if gap > self.config.delta / 2:
            raise FederationError(
                f"privacy.epsilon {self.epsilon:g} with delta {self.config.delta:g} cannot be kept for reports of "
                f"{numbers} numbers: lower privacy.epsilon, or method.projection"
            )
        changed = SENSITIVITY + math.sqrt(2 * numbers) * quantum
        exact = changed * noise_of(self.epsilon, self.config.delta - gap) / math.sqrt(honest)
        return SumsNoise(quantum, math.ceil(exact / quantum), math.ceil(exact / quantum / SENSITIVITY))

    def images_wanted(self, features: int, participants: int, hidden: bool) -> int:
        """Return the images of a class, all clients together, that keep about four fifths of the accuracy."""
        noise = self.noise(features * features, participants if hidden else 1)
        total = noise.full * noise.quantum * math.sqrt(participants * self.config.releases)
        return math.ceil(ENOUGH * total * math.sqrt(features))

    def noised(
        self, packed: Tensor, classes: Tensor, context: RoundContext, participants: int, key: bytes
    ) -> tuple[Tensor, Tensor, float]:
        """Return the triangle of G and the class sums with noise, and the noise's variance.

        The sums are of samples of the newest block alone, so the columns of other classes stay zero.
        """
        features, covered = classes.shape[1], slice(context.old_classes, context.classes)
        columns = classes[covered]
        noise, draw = self.noise(packed.numel() + columns.numel(), participants), Keystream(key)
        diagonal = triangle(torch.eye(features, dtype=torch.float64)) > 0
        more = torch.empty_like(packed)
        more[diagonal] = _drawn(noise.full, features, draw)
        more[~diagonal] = _drawn(noise.half, len(packed) - features, draw)
        released = torch.zeros_like(classes)
        drawn = _drawn(noise.full, columns.numel(), draw).view_as(columns)
        released[covered] = (_whole(columns / noise.quantum) + drawn) * noise.quantum
        return (_whole(packed / noise.quantum) + more) * noise.quantum, released, noise.variance


def _drawn(scale: int, count: int, draw: Keystream) -> Tensor:
    return torch.from_numpy(discrete_gaussian(scale, count, draw).astype(np.float64))


def _whole(values: Tensor) -> Tensor:
    """Return whole numbers, whatever the features were."""
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0).round()


def private_head(sums: Sums, variance: float, unit: bool) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the ridge solution of sums with noise; the penalty follows from the noise alone.

    Where liars make G worse than noise can, the penalty doubles until there is a solution.
    """
    identity = torch.eye(len(sums.gram), dtype=torch.float64)
    penalty = max(DAMPING * math.sqrt(variance * len(sums.gram)), LEAST)
    while int(torch.linalg.cholesky_ex(sums.gram + penalty * identity)[1]):
        penalty *= 2
    return ridge_head(sums, penalty, unit)
