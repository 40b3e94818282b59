"""An encoder as a chain of sigmoid convolutions with a linear layer on top, each written as matrix products."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Convolution:
    """A convolution as matrix products, of values as (images, channels, places) and of errors back to its input.

    Both directions gather: the input's slope at a place is a product with the errors around it, for a stride above one
    by one matrix for each of the stride x stride phases of a place, all of them stacked into one.
    """

    def __init__(self, layer: nn.Conv2d, weight_name: str, bias_name: str, image: tuple[int, int, int]) -> None:
        assert layer.bias is not None
        self.weight_name, self.bias_name = weight_name, bias_name
        self.channels, self.height, self.width = image
        self.kernel, self.stride, self.padding = layer.kernel_size[0], layer.stride[0], int(layer.padding[0])
        self.outputs = layer.out_channels
        self.places = tuple((side + 2 * self.padding - self.kernel) // self.stride + 1 for side in image[1:])
        farthest = (self.padding + self.stride - 1) // self.stride
        self.before = (self.kernel - 1 - self.padding) // self.stride  # errors before a place that reach it
        self.reach = self.before + farthest + 1
        self.cells = tuple(-(-side // self.stride) for side in image[1:])  # groups of stride x stride places
        self.after = tuple(cell + farthest - place for cell, place in zip(self.cells, self.places, strict=True))
        self.weight = self.arrange(layer.weight.detach()[None])[0]
        self.bias = layer.bias.detach()[:, None]
        self._turned = self._turned_order().to(self.weight.device)
        self.backward_weight = self.turn(self.weight[None])[0]

    @property
    def image(self) -> tuple[int, int, int]:
        """Return channels, height and width of the output."""
        return self.outputs, self.places[0], self.places[1]

    def arrange(self, weights: Tensor) -> Tensor:
        """Return weights (n, outputs, channels, kernel, kernel) as matrices whose columns are those of `columns`."""
        return weights.permute(0, 1, 3, 4, 2).reshape(len(weights), self.outputs, -1)

    def columns(self, values: Tensor) -> Tensor:
        """Return the values under the kernel at each place: (images, places, kernel x kernel x channels)."""
        grid = values.view(-1, self.channels, self.height, self.width)
        return _windows(grid, (self.padding,) * 4, self.kernel, self.stride, self.places)

    def error_columns(self, errors: Tensor) -> Tensor:
        """Return the errors that reach each cell of the input: (images, cells, reach x reach x outputs)."""
        grid = errors.view(-1, self.outputs, *self.places)
        border = (self.before, self.after[1], self.before, self.after[0])
        return _windows(grid, border, self.reach, 1, self.cells)

    def carry_back(self, errors: Tensor) -> Tensor:
        """Return the errors at the layer's input."""
        columns = self.error_columns(errors)
        return self.unite(torch.bmm(shared(self.backward_weight, columns), columns.mT))

    def turn(self, matrices: Tensor) -> Tensor:
        """Return weights as matrices from columns of errors to the phases of a cell: (n, phases, ...)."""
        padded = F.pad(matrices.reshape(len(matrices), -1), (0, 1))  # where a tap is outside the kernel, the zero
        return padded.index_select(1, self._turned).view(len(matrices), self.channels * self.stride**2, -1)

    def unite(self, phases: Tensor) -> Tensor:
        """Return the phases of the cells as (images, channels, places of the input)."""
        if self.stride == 1:
            return phases
        grid = phases.view(-1, self.channels, self.stride, self.stride, *self.cells).permute(0, 1, 4, 2, 5, 3)
        sides = [cell * self.stride for cell in self.cells]
        whole = grid.reshape(-1, self.channels, *sides)[:, :, : self.height, : self.width]
        return whole.reshape(len(phases), self.channels, -1)

    def _turned_order(self) -> Tensor:
        """Return where in an arranged matrix each entry of its turned form stands."""
        phase, step = torch.arange(self.stride)[:, None], torch.arange(self.reach)
        tap = self.stride * (self.before - step) + phase + self.padding  # (phase, step)
        inside = (tap >= 0) & (tap < self.kernel)
        shape = (self.channels, self.stride, self.stride, self.reach, self.reach, self.outputs)
        rows, columns = tap[None, :, None, :, None, None], tap[None, None, :, None, :, None]
        channel = torch.arange(self.channels).view(-1, 1, 1, 1, 1, 1)
        order = ((torch.arange(self.outputs) * self.kernel + rows) * self.kernel + columns) * self.channels + channel
        both = inside[None, :, None, :, None, None] & inside[None, None, :, None, :, None]
        outside = self.outputs * self.kernel**2 * self.channels
        return torch.where(both.expand(shape), order, outside).flatten()


def _windows(grid: Tensor, border: tuple[int, ...], size: int, stride: int, places: tuple[int, ...]) -> Tensor:
    """Return the size x size windows of (images, channels, height, width), channels innermost.

    With the channels innermost a window is made of `size` runs of memory, so that copying it costs little.
    """
    padded = F.pad(grid.permute(0, 2, 3, 1), (0, 0, *border)).contiguous()
    image, row, column, _ = padded.stride()
    run = size * column
    windows = padded.as_strided((len(grid), *places, size, run), (image, stride * row, stride * column, row, 1))
    return windows.reshape(len(grid), places[0] * places[1], size * run)


def shared(weight: Tensor, columns: Tensor) -> Tensor:
    """Return one weight for all images, as batched products want it."""
    return weight.expand(len(columns), -1, -1)


@dataclass(frozen=True)
class Chain:
    """An encoder that is a chain of sigmoid convolutions with a linear layer on top, as matrices."""

    convolutions: tuple[Convolution, ...]
    weight_name: str  # of the linear layer
    bias_name: str
    weight: Tensor  # (classes, features)
    bias: Tensor

    def logits(self, images: Tensor) -> Tensor:
        """Return the outputs for images."""
        values = images.flatten(2)
        for layer in self.convolutions:
            values = torch.sigmoid(layer.weight @ layer.columns(values).mT + layer.bias)
        return values.flatten(1) @ self.weight.T + self.bias


def chain_of(encoder: nn.Module, image: tuple[int, int, int]) -> Chain | None:
    """Return the encoder as a chain, or none where it is not one: then autograd has to do."""
    modules = [module for module in encoder.modules() if not isinstance(module, nn.Flatten)]
    leaves = [module for module in modules if next(module.children(), None) is None]
    names = {id(parameter): name for name, parameter in encoder.named_parameters()}
    if len(leaves) < 3 or len(leaves) % 2 == 0 or not isinstance(last := leaves[-1], nn.Linear) or last.bias is None:
        return None
    convolutions: list[Convolution] = []
    shape = image
    for layer, activation in zip(leaves[:-1:2], leaves[1:-1:2], strict=True):
        if not isinstance(layer, nn.Conv2d) or not isinstance(activation, nn.Sigmoid) or not _is_plain(layer, shape):
            return None
        convolutions.append(Convolution(layer, names[id(layer.weight)], names[id(layer.bias)], shape))
        shape = convolutions[-1].image
    if last.in_features != shape[0] * shape[1] * shape[2]:
        return None
    chain = Chain(
        tuple(convolutions), names[id(last.weight)], names[id(last.bias)], last.weight.detach(), last.bias.detach()
    )
    return chain if _computes(chain, encoder, image) else None


def _is_plain(layer: nn.Conv2d, image: tuple[int, int, int]) -> bool:
    square = all(len(set(pair)) == 1 for pair in (layer.kernel_size, layer.stride, layer.padding))
    return (
        square
        and not isinstance(layer.padding, str)
        and layer.groups == 1
        and set(layer.dilation) == {1}
        and layer.padding_mode == "zeros"
        and layer.bias is not None
        and layer.in_channels == image[0]
        and all(side + 2 * int(layer.padding[0]) >= layer.kernel_size[0] for side in image[1:])
    )


def _computes(chain: Chain, encoder: nn.Module, image: tuple[int, int, int]) -> bool:
    """Say whether the chain computes the same as the encoder, whose layers could be wired in another way."""
    size = image[0] * image[1] * image[2]
    probe = torch.linspace(-1, 1, size, dtype=chain.weight.dtype, device=chain.weight.device).view(1, *image)
    with torch.no_grad():
        found, wanted = chain.logits(probe), encoder(probe)
    return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-3, atol=1e-3)
