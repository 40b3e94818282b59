"""Robust statistics of reports: trimmed means, distances, Krum's scores, the geometric median, and capped claims.

The first dimension is always that of the reports. All sums run in double precision.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MEDIAN = 0.5  # cutting half of the values at either end leaves the median
TOLERANCE = 1e-12  # change of the coefficients at which Weiszfeld's iterations end


def trimmed_mean(values: Tensor, share: float, held: Tensor | None = None) -> Tensor:
    """Return, number by number, the mean of the values without a share of them, rounded up, at either end.

    At least one value stays, or two where their number is even. `held` (reports, rows) says whose rows count; a row
    that nobody holds is zero.
    """
    count = torch.tensor(len(values)) if held is None else held.sum(0)
    if held is not None:
        values = values.masked_fill(~_as_column(held, values), math.inf)
    cut = torch.minimum((count * share - 1e-9).ceil().long().clamp(min=0), (count - 1).clamp(min=0) // 2)
    places = torch.arange(len(values)).view(-1, *[1] * count.ndim)
    inside = _as_column((places >= cut) & (places < count - cut), values)
    total = torch.where(inside, values.double().sort(0).values, 0.0).sum(0)
    left = (count - 2 * cut).clamp(min=1)
    return total / left.view(-1, *[1] * (total.ndim - 1)) if count.ndim else total / left


def lower_median(values: Tensor) -> Tensor:
    """Return the median of the positive values along the first dimension, the lower one of two; 0 if there is none."""
    return torch.where(values > 0, values.double(), math.nan).nanmedian(0).values.nan_to_num(0.0)


def capped(claims: Tensor) -> Tensor:
    """Return claims of at most the median of the positive ones.

    >>> capped(torch.tensor([30.0, 0.0, 20.0, 2.0**40])).tolist()
    [30.0, 0.0, 20.0, 30.0]
    """
    return torch.minimum(claims.double(), lower_median(claims))


def inner_products(updates: Tensor) -> Tensor:
    """Return the inner product of each two updates."""
    flat = updates.double().flatten(1)
    return flat @ flat.T


def squared_distances(products: Tensor) -> Tensor:
    """Return the squared distance of each two points from their inner products."""
    own = products.diagonal()
    return (own[:, None] + own[None] - 2 * products).clamp(min=0.0)


def cosine_distances(products: Tensor) -> Tensor:
    """Return 1 minus the cosine of each two updates from their inner products; 1 where one of them is zero.

    >>> cosine_distances(torch.tensor([[4.0, -2.0, 0.0], [-2.0, 1.0, 0.0], [0.0, 0.0, 9.0]]))[0].tolist()
    [0.0, 2.0, 1.0]
    """
    lengths = products.diagonal().sqrt()
    unit = torch.where(lengths > 0, 1 / lengths, 0.0)
    return (1 - products * unit[:, None] * unit).clamp(min=0.0)


def shared_distances(updates: Tensor, held: Tensor) -> Tensor:
    """Return the mean squared distance of each two reports over the rows that both hold.

    `updates` are (reports, rows, ...) and `held` (reports, rows). Two reports that share no row are as far apart as the
    median of those that do, so that they count neither as close nor as far.
    """
    rows = held.double()
    flat = updates.double().flatten(2) * rows[..., None]
    squares, counts = flat.square().sum(2), rows @ rows.T
    crossed = squares @ rows.T
    apart = (crossed + crossed.T - 2 * torch.einsum("irf,jrf->ij", flat, flat)).clamp(min=0.0) / counts.clamp(min=1.0)
    known = (counts > 0) & ~torch.eye(len(rows), dtype=torch.bool)
    middle = apart[known].median() if bool(known.any()) else torch.zeros((), dtype=torch.float64)
    return torch.where(counts > 0, apart, middle).fill_diagonal_(0.0)


def krum_scores(distances: Tensor, hostile: int) -> Tensor:
    """Return Krum's score of each point: the sum of its squared distances to the nearest n - f - 2 others.

    Blanchard et al., 2017; `hostile` is f. At least one neighbour counts.
    """
    points = len(distances)
    others = distances + torch.diag(torch.full((points,), math.inf, dtype=distances.dtype))
    neighbours = min(max(points - hostile - 2, 1), points - 1)
    return others.sort(1).values[:, :neighbours].sum(1)


def weiszfeld(products: Tensor, weights: Tensor, smoothing: float, iterations: int) -> Tensor:
    """Return the coefficients, which add up to 1, whose mean of the points is their weighted geometric median.

    Pillutla et al., 2022 (RFA): each step weighs a point by w / max(smoothing, its distance from the mean so far). The
    points are given by their inner products. Dimensions before the last are problems of their own, (..., n, n) and
    (..., n); without any weight all coefficients are zero.
    """
    found = _shares(weights.double())
    for _ in range(iterations):
        crossed = (products @ found[..., None]).squeeze(-1)
        own = (found * crossed).sum(-1, keepdim=True)
        squared = products.diagonal(dim1=-2, dim2=-1) - 2 * crossed + own
        closer = _shares(weights / squared.clamp(min=0.0).sqrt().clamp(min=smoothing))
        if float((closer - found).abs().max()) < TOLERANCE:
            return closer
        found = closer
    return found


def _shares(weights: Tensor) -> Tensor:
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total > 0, total, 1.0)


def _as_column(rows: Tensor, values: Tensor) -> Tensor:
    """Return one value per report, or per report and row, in a shape that fits the values."""
    return rows.view(*rows.shape, *[1] * (values.ndim - rows.ndim))
