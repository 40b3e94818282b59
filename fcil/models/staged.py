"""A backbone as a chain: a stem, then stages of one kind that each end in an activation, then the mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn


class Stage(nn.Module):
    """Layers whose output is a map before its activation, to which the input is added where it has the same shape."""

    def __init__(self, *layers: nn.Module, adds: bool = False) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.adds = adds

    def map(self, x: Tensor) -> Tensor:
        """Return the map before the activation."""
        found: Tensor = self.layers(x)
        return found + x if self.adds else found

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.map(x))


class StagedChain(nn.Module):
    """A stem and stages; the features are the mean of the last map over all positions."""

    def __init__(self, stem: nn.Module, stages: Iterable[Stage], features: int) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.ModuleList(stages)
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return x.mean((2, 3))

    def maps(self, x: Tensor, after: int = 0) -> list[Tensor]:
        """Return what each stage gives before its closing activation; `x` is a sample, or what a stage gives."""
        x = x if after else self.stem(x)
        found = []
        for stage in self.stages[after:]:
            found.append(cast(Stage, stage).map(x))
            x = F.relu(found[-1])
        return found

    def last_map(self, maps: list[Tensor]) -> Tensor:
        """Return the map that is averaged to the features, given those of all stages."""
        return F.relu(maps[-1])
