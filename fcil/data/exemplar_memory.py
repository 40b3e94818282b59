"""The exemplar memory of a client: for each old class a ranking of samples, cut to an equal share of the budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fcil.core.messages import Message


@dataclass(frozen=True)
class Memory(Message):
    """Ranked sample indices of each class, best first; classes ascend."""

    classes: tuple[int, ...] = ()
    ranked: tuple[Tensor, ...] = ()

    def __len__(self) -> int:
        return sum(len(indices) for indices in self.ranked)

    @property
    def indices(self) -> Tensor:
        """Return all exemplars, class after class."""
        return torch.cat(self.ranked) if self.ranked else torch.empty(0, dtype=torch.int64)

    def without(self, samples: Tensor) -> Memory:
        """Return the memory without some samples, and without classes of which none is left."""
        kept = {name: held[~torch.isin(held, samples)] for name, held in zip(self.classes, self.ranked, strict=True)}
        kept = {name: held for name, held in kept.items() if len(held)}
        return Memory(tuple(kept), tuple(kept.values()))

    def with_classes(self, rankings: Mapping[int, Tensor], budget: int) -> Memory:
        """Return the memory with these classes added or replaced, every class cut to its share."""
        merged = {**dict(zip(self.classes, self.ranked, strict=True)), **rankings}
        classes = tuple(sorted(merged))
        share = exemplars_per_class(budget, len(classes))
        return Memory(classes, tuple(merged[label][:share].clone() for label in classes))


def exemplars_per_class(budget: int, classes: int) -> int:
    """Return each class's equal share of the budget, rounded down.

    >>> exemplars_per_class(60, 7)
    8
    """
    return budget // classes if classes else 0
