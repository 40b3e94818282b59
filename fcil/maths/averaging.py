"""Averaging of model states."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fcil.errors import FederationError

NARROWER = (torch.float32, torch.float16, torch.bfloat16)
CHUNK = 1 << 16  # elements: the sum in double precision stays in the processor's cache


def average_states(states: Sequence[dict[str, Tensor]], weights: Sequence[float] | None = None) -> dict[str, Tensor]:
    """Return the weighted mean of the states (uniform without weights); integer buffers stay integers.

    Sums run in double precision. A tensor that is equal in all states stays as it is to the last bit, and so do the
    others up to the rounding of their own type.
    """
    if not states:
        raise FederationError("no model state to average")
    shares = torch.tensor(weights if weights is not None else [1.0] * len(states), dtype=torch.float64)
    if len(shares) != len(states) or not bool((shares.isfinite() & (shares > 0)).all()):
        raise FederationError(f"averaging {len(states)} states needs as many positive weights, found {shares.tolist()}")
    return {name: _average([state[name] for state in states], shares) for name in states[0]}


def _average(tensors: list[Tensor], shares: Tensor) -> Tensor:
    first = tensors[0]
    # Rounded to a narrower type, a mean of equal values in double precision is that value; in double it need not be.
    if first.dtype not in NARROWER and all(torch.equal(tensor, first) for tensor in tensors):
        return first.clone()
    weights = shares.tolist()
    mean = torch.empty_like(first, memory_format=torch.contiguous_format).view(-1)
    parts = [torch.split(tensor.reshape(-1), CHUNK) for tensor in tensors]
    for place, pieces in zip(torch.split(mean, CHUNK), zip(*parts, strict=True), strict=True):
        total = pieces[0].to(torch.float64) * weights[0]
        for piece, weight in zip(pieces[1:], weights[1:], strict=True):
            total.add_(piece, alpha=weight)
        total /= shares.sum().item()
        place.copy_(total if first.is_floating_point() else total.round_())
    return mean.view(first.shape)
