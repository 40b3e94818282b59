"""Similarity of two images."""

from __future__ import annotations

from torch import Tensor

from fcil.maths.losses import in_double

SMALLEST = 1e-10  # mean squared error that counts as none: 100 dB


def psnr(images: Tensor, reference: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio of each image in decibels, for values in [0, 1]; at most 100.

    >>> import torch
    >>> psnr(torch.full((1, 1, 2, 2), 0.6), torch.full((1, 1, 2, 2), 0.5)).round().tolist()
    [20.0]
    """
    error = in_double(images - reference).flatten(1).square().mean(1)
    return -10 * error.clamp(min=SMALLEST).log10()
