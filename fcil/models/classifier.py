"""The classification model: normalisation, ResNet-18 and a head that grows with the catalogue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fcil.maths.pooled import PROXIES, lsc_scores
from fcil.models import resnet
from fcil.models.resnet import ResNet18, Stem
from fcil.section import Section
from fcil.wire import ModelState, generator

WEIGHT, BIAS = "head.weight", "head.bias"


class ModelConfig(Section):
    """The backbone's shape."""

    width: int = Field(64, ge=1, description="channels of the first stage; 64 is the published ResNet-18")
    stem: Stem = Field("cifar", description="cifar: one 3 x 3 convolution; imagenet: 7 x 7 with pooling")
    last_relu: bool = Field(True, description="activation after the last block; PODNet has none")
    head: Literal["linear", "proxies"] = Field(
        "linear", description="one weight vector per class, or several proxies per class, which only PODNet uses"
    )
    mean: tuple[float, ...] | None = Field(
        None, description="mean per channel, in [0, 1], for normalisation; absent: measured on the training images"
    )
    deviation: tuple[Annotated[float, Field(gt=0)], ...] | None = Field(
        None, description="deviation per channel, for normalisation; absent: measured on the training images"
    )


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


HEADS: dict[str, type[nn.Linear] | type[ProxyHead]] = {"linear": nn.Linear, "proxies": ProxyHead}


class Classifier(nn.Module):
    """Images with values in [0, 1] to one logit per class; the normalisation is part of the model, not of its state."""

    mean: Tensor
    deviation: Tensor
    layout: torch.memory_format = torch.channels_last  # of the activations; the faster one on a CPU

    def __init__(self, config: ModelConfig, mean: Sequence[float], deviation: Sequence[float], classes: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, device="cpu").view(-1, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(deviation, device="cpu").view(-1, 1, 1), persistent=False)
        self.backbone = ResNet18(len(mean), config.width, config.stem, config.last_relu)
        self.head: nn.Linear | ProxyHead = HEADS[config.head](self.backbone.features, classes)

    def extract(self, images: Tensor) -> Tensor:
        """Return the pooled features of each image."""
        features: Tensor = self.backbone(self._normalised(images))
        return features

    def maps(self, images: Tensor) -> list[Tensor]:
        """Return each stage's feature maps before its closing activation."""
        return self.backbone.maps(self._normalised(images))

    def pool(self, maps: list[Tensor]) -> Tensor:
        """Return the pooled features, given the maps: what `extract` gives."""
        return self.backbone.last_map(maps).mean((2, 3))

    def _normalised(self, images: Tensor) -> Tensor:
        normalised = (images - self.mean) / self.deviation
        return normalised.contiguous(memory_format=self.layout)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.extract(images))
        return logits


def initial_state(config: ModelConfig, channels: int, seed: int) -> ModelState:
    """Return fresh weights with no output yet, drawn from the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # of the CPU alone, which is the one that is put back
        net = Classifier(config, [0.0] * channels, [1.0] * channels, classes=1)
    state = {name: tensor.detach() for name, tensor in net.state_dict().items()}
    return {**state, **{name: state[name][:0].clone() for name in (WEIGHT, BIAS) if name in state}}


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
    for name in (WEIGHT, BIAS):
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
    net: Classifier = _copy_structure(outline)
    for name, module in net.named_modules():
        prefix = f"{name}." if name else ""
        for key, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[key] = nn.Parameter(model[prefix + key].detach().to(device, copy=True))
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


def _copy_structure(module: Any) -> Any:
    """Return the module with dicts of its own at every level, and the same tensors in them."""
    copied = module.__new__(type(module))
    own = (dict, set)
    copied.__dict__ = {k: value.copy() if isinstance(value, own) else value for k, value in module.__dict__.items()}
    copied.__dict__["_modules"] = {key: _copy_structure(child) for key, child in module._modules.items()}
    return copied


def parameter_bytes(config: ModelConfig, channels: int) -> int:
    """Return the bytes of the weights, the head left out."""
    return 4 * resnet.parameters(channels, config.width, config.stem)


def activation_bytes(config: ModelConfig, image_shape: tuple[int, int, int], value: int = 4) -> int:
    """Return the fewest bytes that a training step keeps per image, with `value` bytes per number.

    Of each convolution these are what it gives, for the gradient of its batch norm, and, but for a shortcut, what
    comes out of the norm.
    """
    return value * sum(one.values * (2 if one.kernel > 1 else 1) for one in _convolutions(config, image_shape))


def inference_bytes(config: ModelConfig, image_shape: tuple[int, int, int], images: int) -> int:
    """Return the fewest bytes that so many images need at once on their way through the network."""
    return 4 * images * max(one.values for one in _convolutions(config, image_shape))


def _convolutions(config: ModelConfig, image_shape: tuple[int, int, int]) -> list[resnet.Convolution]:
    channels, height, width = image_shape
    return resnet.convolutions(channels, (height, width), config.width, config.stem)


def multiply_adds(config: ModelConfig, image_shape: tuple[int, int, int]) -> int:
    """Return the multiply-adds of one image's forward pass, the head left out."""
    channels, height, width = image_shape
    return resnet.multiply_adds(channels, (height, width), config.width, config.stem)
