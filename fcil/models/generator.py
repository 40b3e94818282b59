"""Generators of images, for methods that keep no samples and let the server make some."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from fcil.core.messages import ModelState, generator

SLOPE = 0.2  # of the leaky activations
INNER_EPSILON = 0.8  # of MFCL's batch norms
BEGINNING = 8  # pixels that MFCL's generator begins with, at most
GROUP = 10  # images that share one of LANDER's noisy layers, at most
NORM_DEVIATION = 0.02  # of LANDER's weights of batch norm, around 1
ImageShape = tuple[int, int, int]
Fill = Callable[[nn.Module, torch.Generator], None]
Net = TypeVar("Net", bound=nn.Module)


class Generator(nn.Module):
    """Noise to images with values in [0, 1]: a linear layer to a quarter of the size, then two doublings.

    A side that four does not divide begins with the next larger quarter. Batch norm always normalises by the batch.
    """

    tracked = False  # whether batch norm keeps statistics, and uses them in evaluation mode
    epsilon = 1e-5  # of all batch norms but the first

    def __init__(self, latent: int, width: int, image_shape: ImageShape, doublings: int = 2) -> None:
        super().__init__()
        channels, height, breadth = image_shape
        sizes = [(math.ceil(height / 2**left), math.ceil(breadth / 2**left)) for left in range(doublings, -1, -1)]
        self.begin = (2 * width, *sizes[0])
        self.linear = nn.Linear(latent, math.prod(self.begin))
        layers: list[nn.Module] = [nn.BatchNorm2d(2 * width, track_running_stats=self.tracked)]
        for number, size in enumerate(sizes[1:], start=1):
            outputs = width if number == doublings else 2 * width
            layers += [
                nn.Upsample(size),
                nn.Conv2d(2 * width, outputs, 3, padding=1, bias=self.tracked),
                nn.BatchNorm2d(outputs, self.epsilon, track_running_stats=self.tracked),
                nn.LeakyReLU(SLOPE, inplace=True),
            ]
        self.layers = nn.Sequential(*layers, nn.Conv2d(width, channels, 3, padding=1))

    def maps(self, noise: Tensor) -> Tensor:
        """Return the last convolution's output."""
        maps = self.linear(noise).view(-1, *self.begin)
        images: Tensor = self.layers(maps.contiguous(memory_format=torch.channels_last))
        return images

    def forward(self, noise: Tensor) -> Tensor:
        return self.maps(noise).sigmoid()


class NormalisedGenerator(Generator):
    """MFCL's: noise to images as a network sees them once normalised; it keeps statistics, and so can be sent."""

    tracked = True
    epsilon = INNER_EPSILON

    def __init__(self, latent: int, width: int, image_shape: ImageShape) -> None:
        doublings = max(2, math.ceil(math.log2(max(image_shape[1:]) / BEGINNING)))
        super().__init__(latent, width, image_shape, doublings)
        self.scale = nn.BatchNorm2d(image_shape[0], affine=False)

    def forward(self, noise: Tensor) -> Tensor:
        images: Tensor = self.scale(self.maps(noise).tanh())
        return images


class AnchoredGenerator(nn.Module):
    """LANDER's: anchors of labels to images, through noisy linear layers, one for every few rows of the batch."""

    def __init__(self, anchor: int, latent: int, width: int, image_shape: ImageShape, rows: int, group: int) -> None:
        super().__init__()
        layers = math.ceil(rows / group)
        self.rows, self.group = rows, group
        self.norm = nn.BatchNorm1d(anchor, track_running_stats=False)
        self.noise_weight = nn.Parameter(torch.empty(layers, anchor, latent))
        self.noise_bias = nn.Parameter(torch.empty(layers, 1, latent))
        self.body = Generator(latent, width, image_shape)

    @torch.no_grad()
    def redraw(self, draw: torch.Generator) -> None:
        """Draw the noisy layers anew."""
        device = self.noise_weight.device
        self.noise_weight.copy_(torch.randn(self.noise_weight.shape, generator=draw).to(device))
        self.noise_bias.zero_()

    def forward(self, anchors: Tensor) -> Tensor:
        missing = len(self.noise_weight) * self.group - self.rows
        padded = nn.functional.pad(self.norm(anchors), (0, 0, 0, missing))
        parts = padded.view(len(self.noise_weight), self.group, -1)
        noise = torch.baddbmm(self.noise_bias, parts, self.noise_weight)
        images: Tensor = self.body(noise.flatten(0, 1)[: self.rows])
        return images


def usual(module: nn.Module, draw: torch.Generator) -> None:
    """Fill a layer from PyTorch's ranges."""
    if isinstance(module, (nn.Linear, nn.Conv2d)):
        bound = 1 / math.sqrt(module.weight[0].numel())
        for parameter in module.parameters():
            parameter.uniform_(-bound, bound, generator=draw)


def xavier(module: nn.Module, draw: torch.Generator) -> None:
    """Fill a layer as LANDER does."""
    if isinstance(module, (nn.Linear, nn.Conv2d)):
        nn.init.xavier_normal_(module.weight, generator=draw)
        if module.bias is not None:
            module.bias.normal_(generator=draw) if isinstance(module, nn.Linear) else module.bias.zero_()
    elif isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)) and module.affine:
        module.weight.normal_(1, NORM_DEVIATION, generator=draw)


def drawn(make: Callable[[], Net], seed: int, fill: Fill = usual) -> Net:
    """Return a generator whose weights are a function of the seed."""
    with torch.device("meta"):
        net = make()
    net.to_empty(device="cpu")
    draw = generator(seed)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                module.reset_parameters()
            fill(module, draw)
    return net


def build_generator(latent: int, width: int, image_shape: ImageShape, seed: int) -> Generator:
    """Return a generator with fresh weights."""
    return drawn(lambda: Generator(latent, width, image_shape), seed)


def load_generator(latent: int, width: int, image_shape: ImageShape, state: ModelState) -> NormalisedGenerator:
    """Return MFCL's generator with weights as sent, in evaluation mode."""
    with torch.device("meta"):
        net = NormalisedGenerator(latent, width, image_shape)
    wanted = {name: (tensor.shape, tensor.dtype) for name, tensor in net.state_dict().items()}
    if wanted != {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}:
        raise ValueError("the generator that was sent does not have the form that the settings describe")
    net.load_state_dict({name: tensor.clone() for name, tensor in state.items()}, assign=True)
    return net.requires_grad_(False).eval()
