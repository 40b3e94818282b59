"""The gradient encoder: a LeNet of four layers for any image size, channels and class capacity."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fcil.core.messages import generator

CHANNELS = 12
BOUND = 0.5  # weights and biases are uniform in [-0.5, 0.5], as in the released code


class LeNet(nn.Module):
    """Three sigmoid convolutions and a linear layer; its last weight gradient gives the label away by design."""

    def __init__(self, channels: int, image_size: tuple[int, int], classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, CHANNELS, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(CHANNELS, CHANNELS, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(CHANNELS, CHANNELS, 5, stride=1, padding=2),
            nn.Sigmoid(),
        )
        height, width = (-(-side // 4) for side in image_size)
        self.fc = nn.Sequential(nn.Linear(CHANNELS * height * width, classes))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.body(images).flatten(1))
        return logits


LAST_LAYER = "fc.0.weight"


def build_encoder(channels: int, image_size: tuple[int, int], classes: int, seed: int) -> LeNet:
    """Return the encoder Gamma whose weights are a function of the seed that clients and proxy share."""
    with torch.device("meta"):
        encoder = LeNet(channels, image_size, classes)
    draw = generator(seed)
    weights = {
        name: torch.empty(tensor.shape).uniform_(-BOUND, BOUND, generator=draw)
        for name, tensor in encoder.state_dict().items()
    }
    encoder.load_state_dict(weights, assign=True)
    return encoder.requires_grad_(False)
