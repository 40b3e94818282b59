"""How well an attacker tells two kinds apart, and how alike two images look."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from scipy.special import bdtr, bdtrc
from torch import Tensor

from fcil.maths.losses import in_double

WINDOW = 7  # pixels per side of the windows that are compared
STABLE = (0.01**2, 0.03**2)  # the constants of Wang et al. (2004), for values in [0, 1]


def found_at(positive: Tensor, negative: Tensor, false: float) -> float:
    """Return the share of positives above a threshold that at most this share of negatives exceeds.

    >>> found_at(torch.tensor([0.2, 0.8, 0.9]), torch.tensor([0.1, 0.3, 0.5, 0.7]), 0.25)
    0.6666666666666666
    """
    ranked = negative.double().sort(descending=True).values
    threshold = ranked[min(int(false * len(ranked)), len(ranked) - 1)]
    return float((positive.double() > threshold).double().mean())


def structural_similarity(images: Tensor, reference: Tensor) -> Tensor:
    """Return the SSIM of each image, the mean over windows and channels: 1 for the same image.

    >>> structural_similarity(torch.ones(1, 1, 8, 8), torch.ones(1, 1, 8, 8)).tolist()
    [1.0]
    """
    x, y = in_double(images), in_double(reference).expand_as(images)
    side = min(WINDOW, *images.shape[-2:])

    def mean(values: Tensor) -> Tensor:
        return F.avg_pool2d(values, side, 1)

    across, along = mean(x), mean(y)
    squares = mean(x * x) - across**2, mean(y * y) - along**2
    joint = mean(x * y) - across * along
    light = (2 * across * along + STABLE[0]) / (across**2 + along**2 + STABLE[0])
    structure = (2 * joint + STABLE[1]) / (squares[0] + squares[1] + STABLE[1])
    return (light * structure).flatten(1).mean(1)


def nearest(image: Tensor, candidates: Tensor) -> int:
    """Return the place of the candidate that differs least from an image, pixel by pixel."""
    return int(torch.cdist(image.flatten()[None].double(), candidates.flatten(1).double()).argmin())


def log_odds(logits: Tensor, outputs: Tensor) -> Tensor:
    """Return ln p / (1 - p) of each row's output, p its softmax probability.

    >>> log_odds(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0])).item()  # 2 - ln 2
    1.3068528194400546
    """
    logits = logits.double()
    own = logits.gather(1, outputs[:, None]).squeeze(1)
    return own - logits.scatter(1, outputs[:, None], -torch.inf).logsumexp(1)


def ratio_of_likelihoods(values: Tensor, known: Tensor, trained: Tensor) -> Tensor:
    """Return ln P(value | trained on) - ln P(value | not) for each image, after Carlini et al. (2022).

    `known` are the values of other models, a row for each, and `trained` says which of them were trained on an image.
    The means are each image's own; the deviations are those of all images, as suits few models.
    """
    known = known.double()
    usable = known.isfinite()
    found = []
    for chosen in (trained & usable, ~trained & usable):
        count = chosen.sum(0)
        mean = torch.where(chosen, known, 0.0).sum(0) / count  # NaN without any
        off = torch.where(chosen, known - mean, 0.0).square().sum()
        variance = (off / (count - 1).clamp(min=0).sum().clamp(min=1)).clamp(min=1e-6)
        found.append(-(values.double() - mean).square() / (2 * variance) - variance.log() / 2)
    ratio: Tensor = found[0] - found[1]
    return ratio


def least_epsilon(coins: int, guesses: int, right: int, delta: float, confidence: float) -> float:
    """Return the epsilon that so many right guesses of coins refute, all below included (Steinke et al., 2023).

    With privacy (epsilon, delta) a guess is right with a probability of at most e^epsilon / (1 + e^epsilon), but for
    delta. The bound is too high with a probability of at most `confidence`.

    >>> round(least_epsilon(20, 10, 10, 0.0, 0.05), 3)  # q^10 = 0.05
    1.052
    """
    low, high = 0.0, 50.0
    if _probability(coins, guesses, right, low, delta) > confidence:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _probability(coins, guesses, right, middle, delta) > confidence else (middle, high)
    return low


def _probability(coins: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return an upper bound of the probability of at least so many right guesses."""
    if right == 0:
        return 1.0
    chance = 1 / (1 + math.exp(-epsilon))
    below = [float(bdtr(number, guesses, chance)) for number in range(right)]
    spread = max((below[-1] - less) / (right - 1 - place) for place, less in enumerate([0.0, *below[:-1]], start=-1))
    return min(1.0, float(bdtrc(right - 1, guesses, chance)) + 2 * coins * delta * spread)
