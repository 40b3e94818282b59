"""ResNet-18 for images of any size, with its width and stem as parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, cast

import torch.nn.functional as F
from torch import Tensor, nn

from fcil.models.registry import Blueprint, ConvolutionShape, Network, Norm, Stem, norm_layer, register_network


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut; the closing activation can be left out."""

    norm_after: ClassVar[Mapping[str, str]] = {"conv1": "bn1", "conv2": "bn2"}  # for `folded`

    def __init__(self, inputs: int, outputs: int, stride: int, relu: bool = True, norm: Norm = "batch") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = norm_layer(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = norm_layer(norm, outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), norm_layer(norm, outputs))
        self.stride = stride
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        out = self.sum(x)
        return F.relu(out, inplace=True) if self.relu else out

    def sum(self, x: Tensor) -> Tensor:
        """Return both branches added, before the closing activation."""
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        # The stride is taken by slicing: on a CPU, the strided 1 x 1 convolution of PyTorch 2.13 writes outside its
        # memory for few channels in the channels-last format.
        beside = x if self.stride == 1 else x[:, :, :: self.stride, :: self.stride]
        added: Tensor = self.bn2(self.conv2(out)).add_(self.shortcut(beside))
        return added


class ResNet18(nn.Module):
    """The feature extractor: four stages of two blocks, then the average over the remaining positions."""

    def __init__(self, channels: int, width: int, stem: Stem, last_relu: bool, norm: Norm = "batch") -> None:
        super().__init__()
        if stem == "cifar":
            self.stem = nn.Sequential(
                nn.Conv2d(channels, width, 3, 1, 1, bias=False), norm_layer(norm, width), nn.ReLU(inplace=True)
            )
        else:
            self.stem = nn.Sequential(
                nn.Conv2d(channels, width, 7, 2, 3, bias=False),
                norm_layer(norm, width),
                nn.ReLU(inplace=True),
                nn.MaxPool2d(3, 2, 1),
            )
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.stages = nn.ModuleList(
            nn.Sequential(
                BasicBlock(widths[stage], widths[stage + 1], 1 if stage == 0 else 2, norm=norm),
                BasicBlock(widths[stage + 1], widths[stage + 1], 1, relu=last_relu or stage < 3, norm=norm),
            )
            for stage in range(4)
        )
        self.features = 8 * width
        self.last_relu = last_relu

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return x.mean((2, 3))

    def maps(self, x: Tensor, after: int = 0) -> list[Tensor]:
        """Return each stage's output before its closing activation; `x` is an image, or a stage's output."""
        x = x if after else self.stem(x)
        found = []
        for stage in self.stages[after:]:
            first, second = cast(nn.Sequential, stage)
            found.append(cast(BasicBlock, second).sum(first(x)))
            x = F.relu(found[-1])
        return found

    def last_map(self, maps: list[Tensor]) -> Tensor:
        """Return the map that is averaged to the features, given those of all stages."""
        return F.relu(maps[-1]) if self.last_relu else maps[-1]


def convolutions(plan: Blueprint, size: tuple[int, int]) -> list[ConvolutionShape]:
    """Return the shapes of the network's convolutions, without building it."""
    width, (height, breadth) = plan.width, size
    found: list[ConvolutionShape] = []

    def convolution(inputs: int, outputs: int, kernel: int, stride: int) -> None:
        nonlocal height, breadth
        height, breadth = -(-height // stride), -(-breadth // stride)
        found.append(ConvolutionShape(inputs, outputs, kernel, height, breadth))

    if plan.stem == "cifar":
        convolution(plan.channels, width, 3, 1)
    else:
        convolution(plan.channels, width, 7, 2)
        height, breadth = -(-height // 2), -(-breadth // 2)
    inputs = width
    for stage in range(4):
        outputs, stride = width << stage, 1 if stage == 0 else 2
        convolution(inputs, outputs, 3, stride)
        if stride != 1:
            convolution(inputs, outputs, 1, 1)  # the shortcut, whose stride is taken before it
        for _ in range(3):
            convolution(outputs, outputs, 3, 1)
        inputs = outputs
    return found


def torchvision_renamed(name: str) -> str:
    """Return our name of a tensor of torchvision's ResNet-18, which is the same network with the stem `imagenet`.

    >>> torchvision_renamed("layer2.0.downsample.0.weight"), torchvision_renamed("bn1.bias")
    ('stages.1.0.shortcut.0.weight', 'stem.1.bias')
    """
    for theirs, ours in (("conv1.", "stem.0."), ("bn1.", "stem.1."), ("fc.", "head.")):
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    staged = re.sub(r"^layer([1-4])\.", lambda found: f"stages.{int(found[1]) - 1}.", name)
    return staged.replace(".downsample.", ".shortcut.")


register_network(
    Network(
        "resnet18",
        "ResNet-18 as in the paper, for images of any size",
        lambda plan: ResNet18(plan.channels, plan.width, plan.stem, plan.last_relu, plan.norm),
        stages=True,
        reads=frozenset({"width", "norm", "stem", "last_relu"}),
        convolutions=convolutions,
        rename=torchvision_renamed,
    )
)
