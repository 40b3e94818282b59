"""Averaging of model states, one after another as they come in."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fcil.core.errors import FederationError

NARROWER = (torch.float32, torch.float16, torch.bfloat16)
State = Mapping[str, Tensor]


class RunningMean:
    """The weighted mean of states that are added one by one; none of them is kept.

    Sums run in double precision. A tensor that is equal in all states stays as it is to the last bit, and so do the
    others up to the rounding of their own type; integer buffers stay integers. Rows of a tensor may have weights of
    their own, which multiply the state's.
    """

    def __init__(self) -> None:
        self.count = 0
        self._totals: dict[str, _Total] = {}

    def add(self, state: State, weight: float = 1.0, rows: State | None = None) -> None:
        """Take in a state; the weight of its tensors' rows is `weight` times `rows`."""
        if not (weight > 0 and weight < float("inf")):
            raise FederationError(f"averaging needs positive weights, found {weight}")
        if not self._totals:
            self._totals = {name: _Total(tensor) for name, tensor in state.items()}
        for name, total in self._totals.items():
            total.add(state[name], weight, None if rows is None else rows.get(name))
        self.count += 1

    def result(self, base: State | None = None) -> dict[str, Tensor]:
        """Return the mean; rows without a weight are taken from the base."""
        if not self.count:
            raise FederationError("no model state to average")
        return {name: total.mean(base[name] if base else None) for name, total in self._totals.items()}

    def weight(self, name: str) -> Tensor:
        """Return the sum of the weights of a tensor: one number, or one per row where rows had their own."""
        return self._totals[name].weight


class _Total:
    """The sum of one tensor over the states so far."""

    def __init__(self, first: Tensor) -> None:
        self.dtype = first.dtype
        # Rounded to a narrower type, a mean of equal values in double precision is that value; in double it may not be.
        self.first = None if first.dtype in NARROWER else first.clone()
        self.total: Tensor | None = None
        self.weight = torch.zeros((), dtype=torch.float64)

    def add(self, tensor: Tensor, weight: float, rows: Tensor | None) -> None:
        if self.first is not None and not torch.equal(tensor, self.first):
            self.first = None
        each = torch.tensor(weight, dtype=torch.float64) if rows is None else rows.to(torch.float64) * weight
        self.weight = self.weight + each
        if self.total is None:
            self.total = tensor.to(torch.float64) * _as_column(each, tensor)
        elif rows is None:
            self.total.add_(tensor, alpha=weight)
        else:
            self.total += tensor.to(torch.float64) * _as_column(each, tensor)

    def mean(self, base: Tensor | None) -> Tensor:
        known = self.weight > 0
        mean = self.first if self.first is not None else self._divided(known)
        if base is not None and self.weight.ndim:
            mean = torch.where(_as_column(known, mean), mean, base.to(mean))
        return mean

    def _divided(self, known: Tensor) -> Tensor:
        assert self.total is not None
        mean = self.total / _as_column(torch.where(known, self.weight, 1.0), self.total)
        return (mean if self.dtype.is_floating_point else mean.round_()).to(self.dtype)


def _as_column(weight: Tensor, tensor: Tensor) -> Tensor:
    """Return a weight per row in a shape that multiplies the tensor's rows."""
    return weight.view(-1, *[1] * (tensor.ndim - 1)).to(tensor.device) if weight.ndim else weight
