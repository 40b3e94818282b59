"""How well an attacker tells two kinds apart, and how alike two images look."""

from __future__ import annotations

import torch
import torch.nn.functional as F
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
