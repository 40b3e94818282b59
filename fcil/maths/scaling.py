"""Bicubic scaling as two matrix products, so that it is the same operation on every device and in every export."""

from __future__ import annotations

import torch
from torch import Tensor

SHARPNESS = -0.5  # a of Keys' kernel; the only one that keeps straight lines straight


def cubic(distance: Tensor) -> Tensor:
    """Return Keys' kernel: (a+2)|x|^3 - (a+3)x^2 + 1 up to one, a|x|^3 - 5ax^2 + 8a|x| - 4a up to two, then zero."""
    a, x = SHARPNESS, distance.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x <= 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def cubic_matrix(inputs: int, outputs: int) -> Tensor:
    """Return the weights by which each of the outputs is made of the inputs; a smaller image is smoothed as well.

    >>> cubic_matrix(3, 3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    scale = inputs / outputs
    centres = (torch.arange(outputs, dtype=torch.float64, device="cpu") + 0.5) * scale - 0.5
    places = torch.arange(inputs, dtype=torch.float64, device="cpu")
    weights = cubic((centres[:, None] - places) / max(scale, 1.0))
    return weights / weights.sum(1, keepdim=True)


def bicubic(images: Tensor, height: int, width: int) -> Tensor:
    """Return images in [0, 1] at another size, as scaled by cubic interpolation and kept within their range."""
    rows, columns = (
        cubic_matrix(before, after).to(images) for before, after in zip(images.shape[2:], (height, width), strict=True)
    )
    return (rows @ images @ columns.T).clamp(0, 1)
