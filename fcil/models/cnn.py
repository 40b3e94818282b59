"""A small convolutional network: three layers for tiny images, fast on a CPU."""

from __future__ import annotations

from torch import Tensor, nn

from fcil.models.registry import Blueprint, ConvolutionShape, Network, Norm, norm_layer, register_network

STRIDES = (1, 2, 2)


class SmallCNN(nn.Module):
    """Three 3 x 3 convolutions of one, two and four times the width, then the average over the remaining positions."""

    def __init__(self, channels: int, width: int, norm: Norm) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for layer, stride in enumerate(STRIDES):
            outputs = width << layer
            layers += [
                nn.Conv2d(channels, outputs, 3, stride, 1, bias=False),
                norm_layer(norm, outputs),
                nn.ReLU(inplace=True),
            ]
            channels = outputs
        self.layers = nn.Sequential(*layers)
        self.features = channels

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.layers(x)
        return maps.mean((2, 3))


def convolutions(plan: Blueprint, size: tuple[int, int]) -> list[ConvolutionShape]:
    """Return the shapes of the network's convolutions, without building it."""
    inputs, (height, breadth) = plan.channels, size
    found = []
    for layer, stride in enumerate(STRIDES):
        outputs, height, breadth = plan.width << layer, -(-height // stride), -(-breadth // stride)
        found.append(ConvolutionShape(inputs, outputs, 3, height, breadth))
        inputs = outputs
    return found


register_network(
    Network(
        "cnn",
        "three convolutions, for images of 8 to 32 pixels; fast on a CPU",
        lambda plan: SmallCNN(plan.channels, plan.width, plan.norm),
        convolutions=convolutions,
    )
)
