"""A network: pooled pixels and fully connected layers."""

from __future__ import annotations

from itertools import pairwise

from pydantic import Field
from torch import Tensor, nn

from fcil.core.settings_table import SettingsTable
from fcil.models.registry import Blueprint, Network, register_network

GRID = 4  # the image is averaged to this many pixels per side, so that any size fits


class PooledSettings(SettingsTable):
    """The table `[model.pooled]`."""

    depth: int = Field(2, ge=1, le=8, description="hidden layers")


class Pooled(nn.Module):
    """Images to features, one row per image."""

    def __init__(self, plan: Blueprint) -> None:
        super().__init__()
        depth = plan.own.depth if isinstance(plan.own, PooledSettings) else PooledSettings().depth
        sizes = [plan.channels * GRID**2, *[plan.width] * depth]
        layers = [layer for ends in pairwise(sizes) for layer in (nn.Linear(*ends), nn.ReLU())]
        self.layers = nn.Sequential(nn.AdaptiveAvgPool2d(GRID), nn.Flatten(), *layers)
        self.features = plan.width  # numbers per image

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of normalised images."""
        features: Tensor = self.layers(images)
        return features


register_network(
    Network("pooled", "fully connected layers", Pooled, reads=frozenset({"width"}), settings=PooledSettings)
)
