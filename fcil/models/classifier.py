"""The classification model: normalisation, a backbone and a head that grows with the catalogue."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fcil.core.messages import ModelState, generator
from fcil.maths.pooled import PROXIES, lsc_scores
from fcil.models.registry import Backbone, Network, Staged
from fcil.models.weights import read_weights

if TYPE_CHECKING:
    from fcil.models.config import ModelConfig

HEAD_ROWS = ("head.weight", "head.bias")  # the tensors of a linear head, whose rows are its outputs
WEIGHT = HEAD_ROWS[0]
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


Head = nn.Linear | ProxyHead | CosineHead


def make_head(config: ModelConfig, features: int, classes: int) -> Head:
    """Return the head that is asked for."""
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
        self.head = make_head(config, features, classes)
        self.frozen = config.freeze
        if self.frozen:
            self.backbone.requires_grad_(False).eval()

    def extract(self, images: Tensor) -> Tensor:
        """Return the pooled features of each image."""
        features: Tensor = self.backbone(self._normalised(images))
        return features

    def maps(self, images: Tensor) -> list[Tensor]:
        """Return each stage's feature maps before its closing activation."""
        return cast(Staged, self.backbone).maps(self._normalised(images))

    def last_map(self, maps: list[Tensor]) -> Tensor:
        """Return the map whose mean over all positions are the features."""
        return cast(Staged, self.backbone).last_map(maps)

    def pool(self, maps: list[Tensor]) -> Tensor:
        """Return the pooled features, given the maps: what `extract` gives."""
        return self.last_map(maps).mean((2, 3))

    def train(self, mode: bool = True) -> Self:
        """Begin or end training; a backbone that is not trained keeps its statistics too."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def _normalised(self, images: Tensor) -> Tensor:
        normalised = (images - self.mean) / self.deviation
        return normalised.contiguous(memory_format=self.layout)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.extract(images))
        return logits


def build_backbone(network: Network, config: ModelConfig, channels: int) -> tuple[nn.Module, int]:
    """Return what a network's factory makes, and the size of its features."""
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

    This is the one place that reads that file: whoever starts a federation calls it, all others are sent the model.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # of the CPU alone, which is the one that is put back
        net = Classifier(config, [0.0] * channels, [1.0] * channels, classes=1)
    state = {name: tensor.detach() for name, tensor in net.state_dict().items()}
    if config.weights is not None:
        state |= read_weights(config, state)
    return {**state, **{name: state[name][:0].clone() for name in HEAD_ROWS if name in state}}


def head_width(model: ModelState) -> int:
    """Return the number of outputs of a model."""
    return len(model[WEIGHT])


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
    net = _copied(outline)
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


def _copied(net: Classifier) -> Classifier:
    """Return a copy of an outline; only our own modules are known to hold each other in no other way than by name."""
    ours = type(net.backbone).__module__.startswith("fcil.")
    copied: Classifier = _copy_structure(net) if ours else copy.deepcopy(net)
    return copied


def _copy_structure(module: Any) -> Any:
    """Return the module with dicts of its own at every level, and the same tensors in them."""
    copied = module.__new__(type(module))
    own = (dict, set)
    copied.__dict__ = {k: value.copy() if isinstance(value, own) else value for k, value in module.__dict__.items()}
    copied.__dict__["_modules"] = {key: _copy_structure(child) for key, child in module._modules.items()}
    return copied
