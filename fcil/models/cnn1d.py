"""A convolutional network along time, for series of several channels."""

from __future__ import annotations

from torch import nn

from fcil.models.registry import Blueprint, Network, Norm, norm_layer, register_network
from fcil.models.staged import Stage, StagedChain

STAGES = 3
KERNEL = 5  # places in time


def cnn1d(plan: Blueprint) -> StagedChain:
    """Return the network; each stage halves the length and doubles the channels, from `width` on."""
    stem = nn.Sequential(*_layer(plan.channels, plan.width, 1, plan.norm), nn.ReLU(inplace=True))
    stages = (_stage(plan.width << stage, plan.norm) for stage in range(STAGES))
    return StagedChain(stem, stages, plan.width << STAGES)


def _stage(channels: int, norm: Norm) -> Stage:
    first = _layer(channels, 2 * channels, 2, norm)
    return Stage(*first, nn.ReLU(inplace=True), *_layer(2 * channels, 2 * channels, 1, norm))


def _layer(inputs: int, outputs: int, stride: int, norm: Norm) -> tuple[nn.Module, nn.Module]:
    kernel, padding = (1, KERNEL), (0, KERNEL // 2)
    return nn.Conv2d(inputs, outputs, kernel, (1, stride), padding, bias=False), norm_layer(norm, outputs)


register_network(
    Network("cnn1d", "seven convolutions along time, for series", cnn1d, stages=True, kinds=frozenset({"series"}))
)
