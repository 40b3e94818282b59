"""The interface of a network, and the registry of networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor, nn

from fcil.core.errors import ConfigError
from fcil.core.registry import Registry, home_of
from fcil.core.settings_table import NoSettings, SettingsTable
from fcil.data.columns import Kind

Norm = Literal["batch", "group"]
Stem = Literal["cifar", "imagenet"]
READABLE = frozenset({"width", "norm", "stem", "last_relu"})  # settings of `[model]` that a factory may look at
MOST_GROUPS, SMALLEST_GROUP = 32, 8  # of GroupNorm; the first is its paper's


@dataclass(frozen=True)
class Blueprint:
    """The input of a factory: the channels of the images, and the settings of `[model]` that shape a network."""

    channels: int
    width: int = 64
    norm: Norm = "batch"
    stem: Stem = "cifar"
    last_relu: bool = True
    own: SettingsTable = field(default_factory=NoSettings)  # the network's own table, `[model.NAME]`


@dataclass(frozen=True)
class ConvolutionShape:
    """The shape of one convolution: its channels, its kernel and the size of its output."""

    inputs: int
    outputs: int
    kernel: int
    height: int
    breadth: int

    @property
    def weights(self) -> int:
        """Return the number of its weights."""
        return self.inputs * self.outputs * self.kernel**2

    @property
    def values(self) -> int:
        """Return the numbers that it gives for one image."""
        return self.outputs * self.height * self.breadth


@runtime_checkable
class Backbone(Protocol):
    """The result of a factory, also a `torch.nn.Module`: images of any size to features, one row per image."""

    features: int  # numbers per image

    def __call__(self, images: Tensor) -> Tensor:
        """Return the features of normalised images."""
        ...


@runtime_checkable
class Staged(Backbone, Protocol):
    """A backbone whose stages can be looked at; its features are the last map's mean over all positions."""

    def maps(self, images: Tensor) -> list[Tensor]:
        """Return each stage's maps (images, channels, height, width) before its closing activation."""
        ...

    def last_map(self, maps: list[Tensor]) -> Tensor:
        """Return the map that is averaged to the features, given those of all stages."""
        ...


class Divisible(Staged, Protocol):
    """A staged backbone that is its stem, then its stages one after the other, then the mean over all positions."""

    stem: nn.Module
    stages: nn.ModuleList

    def maps(self, images: Tensor, after: int = 0) -> list[Tensor]:
        """Return the maps of the stages after so many, given the output of the last of those."""
        ...


@dataclass(frozen=True)
class Pretrained:
    """Weights that a package on the index brings: where they are in it, their digest, and the images they know."""

    distribution: str
    file: str  # within the package
    sha256: str
    side: int  # pixels of the images that they were trained with
    mean: float  # of each channel, for images in [0, 1]
    deviation: float

    @property
    def package(self) -> str:
        """Return the package as Python names it."""
        return self.distribution.replace("-", "_")


@dataclass(frozen=True)
class Network:
    """A registered network: its name, one line on it, and the factory of its backbone.

    `stages` says whether the backbone is a `Staged` one. `reads` names the settings of `[model]`, out of width, norm,
    stem and last_relu, that the factory looks at; the others are refused. `convolutions` gives the shapes of all its
    convolutions, each with a norm behind it, where they are known without building it. `rename` turns a name in
    somebody else's file of weights into ours. `channels` is the only number of channels that the factory takes, if
    there is one: grey images are repeated for it. `pretrained` are the weights that `model.weights = "imagenet"` stands
    for. `kinds` are the kinds of samples that the network takes.
    """

    name: str
    summary: str
    build: Callable[[Blueprint], nn.Module]
    stages: bool = False
    reads: frozenset[str] = frozenset({"width", "norm"})
    convolutions: Callable[[Blueprint, tuple[int, int]], list[ConvolutionShape]] | None = None
    rename: Callable[[str], str] = str
    channels: int | None = None
    pretrained: Pretrained | None = None
    kinds: frozenset[Kind] = frozenset({"image"})

    settings: type[SettingsTable] = NoSettings

    @property
    def module(self) -> str:
        """Return the module that registers the network."""
        return home_of(self.build)


def _check(network: Network) -> None:
    strange = sorted(network.reads - READABLE)
    if strange:
        raise ConfigError(f"{network.name} reads {', '.join(strange)}; there are width, norm, stem and last_relu")


NETWORKS: Registry[Network] = Registry("network", "fcil.models", "fcil.models", _check)


def register_network(network: Network) -> None:
    """Make a network known, under a name that no other one has; a network file calls this once, at its end."""
    NETWORKS.register(network)


def networks() -> Mapping[str, Network]:
    """Return all networks by name: every file of this folder, and those registered from elsewhere."""
    return dict(NETWORKS)


def norm_layer(norm: Norm, channels: int) -> nn.Module:
    """Return a normalisation of so many channels: by batch, or by groups of one image's channels."""
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(groups(channels), channels)


def groups(channels: int) -> int:
    """Return the groups that GroupNorm cuts channels into: at most 32, each of eight channels or more if there are any.

    A group of few channels on a map of one pixel would be left with next to nothing once its mean is taken away.

    >>> [groups(channels) for channels in (2, 8, 20, 64, 512)]
    [1, 1, 2, 8, 32]
    """
    most = min(MOST_GROUPS, max(1, channels // SMALLEST_GROUP))
    return next(count for count in range(most, 0, -1) if channels % count == 0)
