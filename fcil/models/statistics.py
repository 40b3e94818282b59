"""Inputs of batch norm: the statistics of a batch, and the running ones of a trained network."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fcil.maths.synthesis import channel_statistics
from fcil.models.cost import outline

if TYPE_CHECKING:
    from fcil.models.config import ModelConfig


class Statistics(NamedTuple):
    """Mean and variance of each channel at one batch norm."""

    mean: Tensor
    variance: Tensor


class BatchStatistics:
    """Watches a network's batch norms: `kept` has the running statistics of each, in order."""

    def __init__(self, net: nn.Module) -> None:
        layers = _batch_norms(net)
        self.kept = [Statistics(layer.running_mean, layer.running_var) for layer in layers]  # type: ignore[arg-type]
        self._given: dict[int, Statistics] = {}
        for number, layer in enumerate(layers):
            layer.register_forward_pre_hook(lambda _, given, number=number: self._note(number, given[0]))

    def _note(self, number: int, maps: Tensor) -> None:
        self._given[number] = Statistics(*channel_statistics(maps))

    def given(self) -> list[Statistics]:
        """Return the statistics of the last inputs of the batch norms, with gradients."""
        return [self._given[number] for number in range(len(self.kept))]


def has_batch_norm(config: ModelConfig, channels: int = 3) -> bool:
    """Say whether a network has batch norms that keep statistics, or is too wide to be looked at."""
    backbone = outline(config, channels)
    return backbone is None or bool(_batch_norms(backbone))


def _batch_norms(net: nn.Module) -> list[_BatchNorm]:
    return [layer for layer in net.modules() if isinstance(layer, _BatchNorm) and layer.running_mean is not None]
