"""A multilayer perceptron for the rows of a table: a first layer and three more, each added to its input."""

from __future__ import annotations

from torch import Tensor, nn

from fcil.models.registry import Blueprint, Network, Norm, norm_layer, register_network
from fcil.models.staged import Stage, StagedChain

STAGES = 3


class Dense(nn.Linear):
    """A linear layer on the channels of samples (samples, channels, 1, 1)."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.flatten(1))[:, :, None, None]


def mlp(plan: Blueprint) -> StagedChain:
    """Return the network; each layer has `width` units."""
    width = plan.width
    stem = nn.Sequential(*_layer(plan.channels, width, plan.norm), nn.ReLU(inplace=True))
    stages = (Stage(*_layer(width, width, plan.norm), adds=True) for _ in range(STAGES))
    return StagedChain(stem, stages, width)


def _layer(inputs: int, outputs: int, norm: Norm) -> tuple[nn.Module, nn.Module]:
    return Dense(inputs, outputs, bias=False), norm_layer(norm, outputs)


register_network(
    Network(
        "mlp", "four layers of `width` units, for the rows of a table", mlp, stages=True, kinds=frozenset({"vector"})
    )
)
