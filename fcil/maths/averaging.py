"""Averaging of model states."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fcil.errors import FederationError


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
    if all(torch.equal(tensor, tensors[0]) for tensor in tensors):
        return tensors[0].clone()
    total = torch.zeros(tensors[0].shape, dtype=torch.float64, device=tensors[0].device)
    for tensor, share in zip(tensors, shares.tolist(), strict=True):
        total.add_(tensor, alpha=share)
    mean = total.div_(shares.sum().item())
    return (mean if tensors[0].is_floating_point() else mean.round()).to(tensors[0].dtype)
