"""Averaging of model states."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fcil.errors import FederationError


def average_states(states: Sequence[dict[str, Tensor]], weights: Sequence[float] | None = None) -> dict[str, Tensor]:
    """Return the weighted mean of the states (uniform without weights); integer buffers stay integers.

    Sums run in double precision, so the mean of equal states is that state to the last bit.
    """
    if not states:
        raise FederationError("no model state to average")
    shares = torch.tensor(weights if weights is not None else [1.0] * len(states), dtype=torch.float64)
    if len(shares) != len(states) or not bool((shares > 0).all()):
        raise FederationError(f"averaging {len(states)} states needs as many positive weights, found {shares.tolist()}")
    return {name: _average([state[name] for state in states], shares) for name in states[0]}


def _average(tensors: list[Tensor], shares: Tensor) -> Tensor:
    total = torch.zeros(tensors[0].shape, dtype=torch.float64, device=tensors[0].device)
    for tensor, share in zip(tensors, shares.tolist(), strict=True):
        total += tensor.to(torch.float64) * share
    mean = total / shares.sum().item()
    return mean.to(tensors[0].dtype)
