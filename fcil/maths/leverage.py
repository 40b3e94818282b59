"""FedCBDR's replay: leverage scores of samples in the union of all clients' features, from second moments alone."""

from __future__ import annotations

import torch
from torch import Tensor

from fcil.maths.losses import in_double


def second_moments(features: Tensor) -> Tensor:
    """Return X^T X / n, in double precision: the Gram matrix of the features, divided by the number of samples.

    >>> second_moments(torch.tensor([[2.0, 0.0], [0.0, 2.0]])).tolist()
    [[2.0, 0.0], [0.0, 2.0]]
    """
    rows = in_double(features)
    gram = rows.T @ rows / max(len(rows), 1)
    return (gram + gram.T) / 2  # symmetric to the last bit, which a product of matrices need not be


def pseudo_inverse(gram: Tensor) -> Tensor:
    """Return the pseudo-inverse of a Gram matrix, in double precision.

    Clients send single precision, so eigenvalues below its resolution are rounding errors and count as zero. So do
    negative ones, which no sum of Gram matrices has.
    """
    values, vectors = torch.linalg.eigh(in_double(gram))
    resolution = len(gram) * torch.finfo(torch.float32).eps * values.abs().max()
    inverted = torch.where(values > resolution, 1 / values, 0.0)
    inverse: Tensor = (vectors * inverted) @ vectors.T
    return inverse


def leverage(features: Tensor, inverse: Tensor) -> Tensor:
    """Return f^T G^+ f of each row: high where few of the samples behind the Gram matrix G point the same way.

    For one of these samples it is the squared norm of its row of U, if U S V^T are the samples.
    """
    rows = in_double(features)
    return torch.einsum("ni,ij,nj->n", rows, inverse.to(rows), rows).clamp(min=0)


def mixed_rows(features: Tensor, draw: torch.Generator) -> Tensor:
    """Return P X for a random orthogonal P: the rows as FedCBDR prints them, each of which is a mixture of all samples.

    They have the Gram matrix of the features themselves.
    """
    rows = features.detach().to("cpu", torch.float64)
    orthogonal, triangular = torch.linalg.qr(torch.randn(len(rows), len(rows), generator=draw, dtype=torch.float64))
    mixed: Tensor = (orthogonal * triangular.diagonal().sign()) @ rows
    return mixed


def drawn_order(scores: Tensor, draw: torch.Generator) -> Tensor:
    """Return the rows in the order in which they are drawn without replacement, each with p in proportion to its score.

    Rows without a score come last, in random order. The beginning of the order is itself such a draw.
    """
    lots = torch.randperm(len(scores), generator=draw)
    waits = torch.empty(len(scores), dtype=torch.float64).exponential_(generator=draw)
    # Of waiting times with rates in proportion to the scores, each is the shortest with just that probability.
    arrivals = torch.where(scores.cpu() > 0, waits / scores.cpu().double(), torch.inf)
    return lots[arrivals[lots].argsort(stable=True)]
