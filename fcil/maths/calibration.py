"""Probabilities that mean something: a temperature and a least score, from sums over hold-out samples.

Parties add up, for each temperature of a grid, the log-likelihood of their hold-out samples, and per bin of the score
how many there are and how many are right. The score of a sample is the probability of its likeliest class.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

TEMPERATURES = tuple(10.0 ** (power / 10) for power in range(-20, 21))  # that logits are divided by
BINS = 200  # of the score, all of the same width
CALIBRATION_BINS = 20  # in which the calibration error compares scores with accuracy
REJECTED = 0.05  # share of hold-out samples that the least score turns away
LONGEST_LOSS = 1e3  # nats that a sample costs at most, so that one of them does not decide alone


@dataclass(frozen=True)
class ScoreSums:
    """Sums over hold-out samples, a row per temperature; they add up over parties."""

    loss: Tensor  # summed negative log-likelihood
    images: Tensor  # per bin of the score
    right: Tensor  # per bin, those whose likeliest class is theirs
    score: Tensor  # per bin, summed

    def __add__(self, other: ScoreSums) -> ScoreSums:
        return ScoreSums(
            self.loss + other.loss, self.images + other.images, self.right + other.right, self.score + other.score
        )


@dataclass(frozen=True)
class Fitted:
    """The temperature of the highest likelihood, and the score below which few hold-out samples lie."""

    temperature: float
    threshold: float


def scores(logits: Tensor, temperature: float) -> Tensor:
    """Return the probability of the likeliest class of each sample, with logits divided by the temperature."""
    return (logits.double() / temperature).softmax(1).amax(1)


def score_sums(logits: Tensor, targets: Tensor) -> ScoreSums:
    """Return the sums over samples; a target of -1 belongs to no output, and can only be wrong."""
    known, found = targets >= 0, logits.argmax(1)
    correct, rows = (found == targets).double(), []
    for temperature in TEMPERATURES:
        logs = F.log_softmax(logits.double() / temperature, 1)
        loss = -logs[known].gather(1, targets[known, None]).clamp(min=-LONGEST_LOSS).sum()
        score = logs.amax(1).exp()
        place = (score * BINS).long().clamp(0, BINS - 1)
        sums = [torch.zeros(BINS, dtype=torch.float64).index_add(0, place, value) for value in (correct, score)]
        rows.append((loss, torch.bincount(place, minlength=BINS).double(), *sums))
    return ScoreSums(*(torch.stack(column) for column in zip(*rows, strict=True)))


def fitted(sums: ScoreSums) -> Fitted:
    """Return the temperature with the smallest loss, and the highest edge of a bin with `REJECTED` below it at most."""
    row = int(sums.loss.argmin())
    below = sums.images[row].cumsum(0)
    bins = int((below <= REJECTED * float(below[-1])).sum())
    return Fitted(TEMPERATURES[row], bins / BINS)


def calibration_error(sums: ScoreSums, temperature: float) -> float:
    """Return the expected calibration error: the mean over samples of |accuracy - score|, bin by bin."""
    row = TEMPERATURES.index(temperature)
    gaps = (sums.right[row] - sums.score[row]).view(CALIBRATION_BINS, -1).sum(1).abs()
    return float(gaps.sum() / sums.images[row].sum().clamp(min=1))


def area_under_curve(known: Tensor, unknown: Tensor) -> float:
    """Return the chance that a known sample scores higher than an unknown one, where a tie counts half."""
    both, places = torch.unique(torch.cat([known, unknown]), return_inverse=True)
    above = torch.bincount(places[: len(known)], minlength=len(both)).double()
    below = torch.bincount(places[len(known) :], minlength=len(both)).double()
    pairs = above * (below.cumsum(0) - below / 2)
    return float(pairs.sum() / (len(known) * len(unknown)))
