"""The classification model: normalisation, a backbone and a head that grows with the catalogue."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fcil.core.errors import ConfigError
from fcil.core.messages import ModelState, generator, model_digest
from fcil.maths.analytic import projected
from fcil.maths.pooled import PROXIES, lsc_scores
from fcil.maths.scaling import bicubic
from fcil.models.config import scaled
from fcil.models.registry import Backbone, Divisible, Network, Staged
from fcil.models.weights import read_weights

if TYPE_CHECKING:
    from fcil.models.config import ModelConfig

HEAD_ROWS = ("head.weight", "head.bias")  # the tensors of a linear head, whose rows are its outputs
WEIGHT, PROJECTION = HEAD_ROWS[0], "head.projection"
FEATURES, PIXELS = 2, 4  # axes of what a network is called with; maps of a frozen part have five
SHORTEST = 0.1  # length below which features count as this long: the slope of a direction is one over the length


class ProxyHead(nn.Module):
    """PODNet's local similarity classifier: a class scores by its proxies' similarity, times a learned scale."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(features)
        self.weight = nn.Parameter(torch.empty(classes, PROXIES, features).uniform_(-bound, bound))
        self.scale = nn.Parameter(torch.ones(1))  # eta, taken without its sign

    def similarities(self, features: Tensor) -> Tensor:
        """Return the score of each class, before the scale."""
        return lsc_scores(features, self.weight)

    def forward(self, features: Tensor) -> Tensor:
        return self.scale.abs() * self.similarities(features)


class CosineHead(nn.Module):
    """A class scores by the cosine between its weight vector and the features, times a fixed scale.

    Cosines alone are too close together for a softmax.
    """

    def __init__(self, features: int, classes: int, scale: float) -> None:
        super().__init__()
        bound = 1 / math.sqrt(features)
        self.weight = nn.Parameter(torch.empty(classes, features).uniform_(-bound, bound))
        self.scale = scale

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * F.linear(F.normalize(features, eps=SHORTEST), F.normalize(self.weight))


class ProjectedHead(nn.Module):
    """A linear head on a random projection of the features, which no training changes."""

    projection: Tensor

    def __init__(self, features: int, classes: int, size: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(size)
        self.register_buffer("projection", torch.randn(features, size))
        self.weight = nn.Parameter(torch.empty(classes, size).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(classes).uniform_(-bound, bound))

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(projected(features, self.projection), self.weight, self.bias)


class MappedHead(nn.Linear):
    """A linear head, and beside it a linear map of the features, which no prediction uses (LANDER)."""

    def __init__(self, features: int, classes: int, size: int) -> None:
        super().__init__(features, classes)
        self.map = nn.Linear(features, size)


Head = nn.Linear | ProxyHead | CosineHead | ProjectedHead


def make_head(config: ModelConfig, features: int, classes: int) -> Head:
    """Return the head that is asked for."""
    if config.head == "projected":
        return ProjectedHead(features, classes, config.projection)
    if config.head == "mapped":
        return MappedHead(features, classes, config.projection)
    if config.head == "cosine":
        return CosineHead(features, classes, config.head_scale)
    return ProxyHead(features, classes) if config.head == "proxies" else nn.Linear(features, classes)


class Classifier(nn.Module):
    """Images with values in [0, 1] to one logit per class; the normalisation is part of the model, not of its state."""

    mean: Tensor
    deviation: Tensor
    layout: torch.memory_format = torch.channels_last  # of the activations; the faster one on a CPU

    def __init__(self, config: ModelConfig, mean: Sequence[float], deviation: Sequence[float], classes: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, device="cpu").view(-1, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(deviation, device="cpu").view(-1, 1, 1), persistent=False)
        self.backbone, features = build_backbone(config.network, config, len(mean))
        self.channels, self.side = config.network.channels or len(mean), config.image_size
        self.head = make_head(config, features, classes)
        self.freeze, self.frozen_stages = config.freeze, config.frozen_stages
        for part in self._frozen_parts():
            part.requires_grad_(False)
        if self.freeze:
            self.backbone.eval()

    def _frozen_parts(self) -> list[nn.Module]:
        """Return the tensors that training does not change."""
        if not self.frozen_stages:
            return [self.backbone] if self.freeze else []
        backbone = cast(Divisible, self.backbone)
        if not self.frozen_stages < len(backbone.stages):
            most = len(backbone.stages) - 1
            raise ConfigError(f"model.freeze: found {self.freeze}, should be true or at most stages:{most}")
        return [backbone.stem, *backbone.stages[: self.frozen_stages]]

    def frozen_digest(self) -> str:
        """Return a digest of everything that the output of `prepare` depends on, except the machine."""
        tensors = {"mean": self.mean, "deviation": self.deviation}
        for number, part in enumerate(self._frozen_parts()):
            tensors |= {f"{number}.{name}": tensor for name, tensor in part.state_dict().items()}
        shape = f"{self.side} {self.channels} {self._frozen_parts()}"
        return hashlib.sha256(f"{model_digest(tensors)} {shape}".encode()).hexdigest()

    def prepare(self, images: Tensor) -> Tensor:
        """Return the frozen part's outputs for images; the network can be called with them instead.

        These are the features where the whole backbone is frozen, else maps, with one axis more than an image has.
        """
        x = self._normalised(images).contiguous(memory_format=Classifier.layout)  # whatever layout the rest has
        for part in self._frozen_parts():
            x = part(x)
        return x[:, None].contiguous() if self.frozen_stages else x

    def extract(self, images: Tensor) -> Tensor:
        """Return the pooled features of each image, given the image or its output of `prepare`."""
        if images.ndim == PIXELS:
            features: Tensor = self.backbone(self._normalised(images))
            return features
        if images.ndim == FEATURES:
            return images
        x = images[:, 0].contiguous(memory_format=self.layout)
        for stage in self._later_stages():
            x = stage(x)
        return x.mean((2, 3))

    def maps(self, images: Tensor) -> list[Tensor]:
        """Return each stage's maps before its closing activation; for prepared inputs, the trained stages' maps."""
        if images.ndim == PIXELS:
            return cast(Staged, self.backbone).maps(self._normalised(images))
        if images.ndim == FEATURES:
            return [images[:, :, None, None]]
        x = images[:, 0].contiguous(memory_format=self.layout)
        return cast(Divisible, self.backbone).maps(x, after=self.frozen_stages)

    def last_map(self, maps: list[Tensor]) -> Tensor:
        """Return the map whose mean over all positions are the features."""
        return cast(Staged, self.backbone).last_map(maps)

    def pool(self, maps: list[Tensor]) -> Tensor:
        """Return the pooled features, given the maps: what `extract` gives."""
        return self.last_map(maps).mean((2, 3))

    def train(self, mode: bool = True) -> Self:
        """Begin or end training; a frozen part keeps its statistics too."""
        if not self.freeze:
            return super().train(mode)
        self.training = mode
        for part in (*self._later_stages(), self.head):
            part.train(mode)
        return self

    def _later_stages(self) -> Iterable[nn.Module]:
        """Return the trained stages, which follow the frozen ones."""
        return cast(Divisible, self.backbone).stages[self.frozen_stages :] if self.frozen_stages else ()

    def _normalised(self, images: Tensor) -> Tensor:
        normalised = (resized(images, self.side) - self.mean) / self.deviation
        normalised = normalised.expand(-1, self.channels, -1, -1)
        if self.channels == 1 and self.layout == torch.channels_last:
            return normalised.squeeze(1).unsqueeze(3).permute(0, 3, 1, 2)  # which strides alone tell
        return normalised.contiguous(memory_format=self.layout)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.extract(images))
        return logits


def resized(images: Tensor, side: int | None) -> Tensor:
    """Return images in [0, 1] with a shorter side of so many pixels, by bicubic interpolation."""
    before: tuple[int, int] = (images.shape[2], images.shape[3])
    after = scaled(before, side)
    if after == before:
        return images
    return bicubic(images, *after)


def build_backbone(network: Network, config: ModelConfig, channels: int) -> tuple[nn.Module, int]:
    """Return the network that its factory makes, and the size of its features."""
    backbone = network.build(config.blueprint(channels))
    kind = Staged if network.stages else Backbone
    if not isinstance(backbone, nn.Module) or not isinstance(backbone, kind):
        wanted = "a torch.nn.Module with features, maps and last_map" if network.stages else "one with features"
        raise TypeError(f"the network {network.name} is a {type(backbone).__name__}, should be {wanted}")
    features: object = backbone.features
    if not isinstance(features, int) or features < 1:
        raise TypeError(f"the network {network.name} has {features!r} as features, should be their number per image")
    return backbone, features


def initial_state(config: ModelConfig, channels: int, seed: int) -> ModelState:
    """Return fresh weights with no output yet, drawn from the seed, or in the backbone those of `model.weights`.

    No other function reads that file: the party that starts a federation calls this one, all others are sent the model.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # of the CPU alone, which is the one that is put back
        net = Classifier(config, [0.0] * channels, [1.0] * channels, classes=1)
    state = {name: tensor.detach() for name, tensor in net.state_dict().items()}
    if config.weights is not None:
        state |= read_weights(config, state)
    return {**state, **{name: state[name][:0].clone() for name in HEAD_ROWS if name in state}}


def is_head(name: str) -> bool:
    """Say whether a tensor of a model belongs to its head."""
    return name.startswith("head.")


def frozen_digest(model: ModelState, config: ModelConfig) -> str:
    """Return a digest of the tensors that training leaves unchanged; empty if it may change all."""
    return model_digest({name: model[name] for name in model if not config.trains(name)}) if config.freeze else ""


def head_width(model: ModelState) -> int:
    """Return the number of outputs of a model."""
    return len(model[WEIGHT])


def feature_size(model: ModelState) -> int:
    """Return the number of features that the backbone of a model gives."""
    return model[PROJECTION].shape[0] if PROJECTION in model else model[WEIGHT].shape[-1]


def grow(model: ModelState, classes: int, seed: int) -> ModelState:
    """Return the model with a head of `classes` outputs: old rows bit for bit, new ones like a fresh linear layer."""
    missing = classes - head_width(model)
    if missing < 0:
        raise ValueError(f"a head of {head_width(model)} outputs cannot shrink to {classes}")
    bound = 1 / math.sqrt(model[WEIGHT].shape[-1])
    draw = generator(seed)
    grown = dict(model)
    for name in HEAD_ROWS:
        if name in model:
            rows = torch.empty(missing, *model[name].shape[1:]).uniform_(-bound, bound, generator=draw)
            grown[name] = torch.cat([model[name], rows.to(model[name])])
    return grown


def load_classifier(
    config: ModelConfig, mean: Sequence[float], deviation: Sequence[float], model: ModelState, device: torch.device
) -> Classifier:
    """Return a network of its own (the state is copied), with as many outputs as the state has."""
    outline = _outline(config, tuple(mean), tuple(deviation), head_width(model))
    expected = {name: tensor.shape for name, tensor in outline.state_dict().items()}
    if expected != {name: tensor.shape for name, tensor in model.items()}:
        odd = [name for name in expected.keys() | model.keys() if name not in model or name not in expected]
        odd += [name for name in expected.keys() & model.keys() if expected[name] != model[name].shape]
        raise ValueError(f"the model does not fit a network of this shape: {', '.join(sorted(odd))}")
    net = copied(outline)
    for name, module in net.named_modules():
        prefix = f"{name}." if name else ""
        for key, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[key] = nn.Parameter(
                    model[prefix + key].detach().to(device, copy=True), parameter.requires_grad
                )
        for key, buffer in module._buffers.items():
            value = model.get(prefix + key, buffer)  # the normalisation is no part of the state
            module._buffers[key] = value.detach().to(device, copy=True) if value is not None else None
    return net


@lru_cache(maxsize=8)
def _outline(config: ModelConfig, mean: tuple[float, ...], deviation: tuple[float, ...], classes: int) -> Classifier:
    """Return a network whose weights take no memory: building modules takes longer than filling a small network."""
    with torch.device("meta"):
        net = Classifier(config, mean, deviation, classes=max(1, classes))
    if classes == 0:
        for name in ("weight", "bias"):
            if name in net.head._parameters:
                setattr(net.head, name, nn.Parameter(getattr(net.head, name)[:0]))
        if isinstance(net.head, nn.Linear):
            net.head.out_features = 0
    return net


def is_ours(net: Classifier) -> bool:
    """Say whether the backbone is of this package: its modules are known to hold each other by name alone."""
    return type(net.backbone).__module__.startswith("fcil.")


def copied(net: Classifier) -> Classifier:
    """Return a copy of a network; one of our own shares its tensors with it."""
    found: Classifier = _copy_structure(net) if is_ours(net) else copy.deepcopy(net)
    return found


def _copy_structure(module: Any) -> Any:
    """Return the module with dicts of its own at every level, and the same tensors in them."""
    copied = module.__new__(type(module))
    own = (dict, set)
    copied.__dict__ = {k: value.copy() if isinstance(value, own) else value for k, value in module.__dict__.items()}
    copied.__dict__["_modules"] = {key: _copy_structure(child) for key, child in module._modules.items()}
    return copied
