"""A generator of images from noise, for methods that keep no samples and let the server make some."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fcil.core.messages import generator

SLOPE = 0.2  # of the leaky activations


class Generator(nn.Module):
    """Noise to images with values in [0, 1]: a linear layer to a quarter of the size, then two doublings.

    A side that four does not divide begins with the next larger quarter. Batch norm always normalises by the batch.
    """

    def __init__(self, latent: int, width: int, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, breadth = image_shape
        self.begin = (2 * width, math.ceil(height / 4), math.ceil(breadth / 4))
        self.linear = nn.Linear(latent, math.prod(self.begin))
        self.layers = nn.Sequential(
            nn.BatchNorm2d(2 * width, track_running_stats=False),
            nn.Upsample((math.ceil(height / 2), math.ceil(breadth / 2))),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width, track_running_stats=False),
            nn.LeakyReLU(SLOPE, inplace=True),
            nn.Upsample((height, breadth)),
            nn.Conv2d(2 * width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width, track_running_stats=False),
            nn.LeakyReLU(SLOPE, inplace=True),
            nn.Conv2d(width, channels, 3, padding=1),
        )

    def forward(self, noise: Tensor) -> Tensor:
        maps = self.linear(noise).view(-1, *self.begin)
        images: Tensor = self.layers(maps.contiguous(memory_format=torch.channels_last))
        return images.sigmoid()


def build_generator(latent: int, width: int, image_shape: tuple[int, int, int], seed: int) -> Generator:
    """Return a generator whose weights are a function of the seed, drawn from PyTorch's ranges for such layers."""
    with torch.device("meta"):
        net = Generator(latent, width, image_shape)
    net.to_empty(device="cpu")
    draw = generator(seed)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_parameters()
            elif isinstance(module, (nn.Linear, nn.Conv2d)):
                bound = 1 / math.sqrt(module.weight[0].numel())
                for parameter in module.parameters():
                    parameter.uniform_(-bound, bound, generator=draw)
    return net
