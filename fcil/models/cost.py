"""The cost of a network: operations and memory, by the shapes of its convolutions or else by a look at it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fcil.core.errors import ConfigError, reason
from fcil.models.classifier import build_backbone
from fcil.models.registry import Backbone, ConvolutionShape, Staged

if TYPE_CHECKING:
    from fcil.models.config import ModelConfig

Shape = tuple[int, int, int]
BACKWARD = 2  # a backward pass is two forward ones
ENDLESS = 1 << 62  # numbers of a network that is too wide to be described at all
FEW, MORE = 2, 4  # images whose difference is what one image adds


@dataclass(frozen=True)
class Cost:
    """The cost of one image on its way through a backbone."""

    multiply_adds: int
    kept: int  # numbers that a training step keeps, at least
    largest: int  # numbers of its largest map


def parameter_bytes(config: ModelConfig, channels: int) -> int:
    """Return the bytes of the weights, the head left out."""
    known = _convolutions(config, (channels, 1, 1))
    if known is not None:
        return 4 * sum(one.weights + 2 * one.outputs for one in known)
    return measured_bytes(config, channels)


def activation_bytes(config: ModelConfig, image_shape: Shape, value: int = 4) -> int:
    """Return the fewest bytes that a training step keeps per image, with `value` bytes per number.

    For each convolution these are its output, for the gradient of its norm, and, except for a shortcut, the output of
    the norm. A backbone that is not trained keeps nothing, and needs room for one map.
    """
    cost = cost_of(config, image_shape)
    return value * (cost.largest if config.freeze else cost.kept)  # at least, where some stages are frozen


def inference_bytes(config: ModelConfig, image_shape: Shape, images: int) -> int:
    """Return the fewest bytes that so many images need at once on their way through the network."""
    return 4 * images * cost_of(config, image_shape).largest


def multiply_adds(config: ModelConfig, image_shape: Shape) -> int:
    """Return the multiply-adds of one image's forward pass, the head left out."""
    return cost_of(config, image_shape).multiply_adds


def training_adds(config: ModelConfig, image_shape: Shape) -> int:
    """Return the multiply-adds of one image's training step; a frozen backbone takes no part, as features are kept."""
    return 0 if config.freeze is True else multiply_adds(config, image_shape) * (1 + BACKWARD)


def cost_of(config: ModelConfig, image_shape: Shape) -> Cost:
    """Return the cost of an image of this shape, or say why the network cannot take it."""
    seen = config.seen(image_shape)
    known = _convolutions(config, seen)
    if known is None:
        return measured(config, seen)
    return Cost(
        multiply_adds=sum(one.weights * one.height * one.breadth for one in known),
        kept=sum(one.values * (2 if one.kernel > 1 else 1) for one in known),
        largest=max(one.values for one in known),
    )


def _convolutions(config: ModelConfig, image_shape: Shape) -> list[ConvolutionShape] | None:
    network, (channels, *size) = config.network, image_shape
    return network.convolutions(config.blueprint(channels), (size[0], size[1])) if network.convolutions else None


@lru_cache(maxsize=64)
def measured_bytes(config: ModelConfig, channels: int) -> int:
    """Return the bytes of the weights that a factory makes."""
    backbone = outline(config, channels)
    if backbone is None:
        return 4 * ENDLESS
    return sum(parameter.numel() * parameter.element_size() for parameter in backbone.parameters())


@lru_cache(maxsize=64)
def measured(config: ModelConfig, image_shape: Shape) -> Cost:
    """Return the counts of a forward pass: without memory where the network allows it, else with real numbers."""
    backbone = outline(config, image_shape[0])
    if backbone is None:
        return Cost(ENDLESS, ENDLESS, ENDLESS)
    try:
        return _passed(backbone, config, image_shape)
    except Exception:  # not every operation can be described without its numbers
        try:
            return _passed(_built(config, image_shape[0], "cpu"), config, image_shape)
        except Exception as error:
            pixels = " x ".join(map(str, image_shape))
            raise ConfigError(
                f"model.name: {config.name} cannot be used with images of {pixels}: {_said(error)}"
            ) from error


def outline(config: ModelConfig, channels: int) -> nn.Module | None:
    """Return the backbone without memory for its weights, or nothing if it is too wide for any memory."""
    try:
        return _built(config, channels, "meta")
    except Exception as error:
        if config.width > 1 and "width" in config.network.reads and _can_be_built(config, channels):
            return None
        raise ConfigError(f"model.name: {config.name} cannot be built: {_said(error)}") from error


def _can_be_built(config: ModelConfig, channels: int) -> bool:
    try:
        _built(config.model_copy(update={"width": 1}), channels, "meta")
    except Exception:
        return False
    return True


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {reason(error)}"


def _built(config: ModelConfig, channels: int, device: str) -> nn.Module:
    """Return the backbone alone, once it is found to be all in its state."""
    with torch.random.fork_rng(devices=[]), torch.device(device):
        backbone, _ = build_backbone(config.network, config, channels)
    hidden = {name for name, _ in backbone.named_buffers()} - backbone.state_dict().keys()
    if hidden:
        raise ValueError(f"its buffers {', '.join(sorted(hidden))} are not in its state dict; make them persistent")
    names = [name for name, _ in backbone.named_parameters(remove_duplicate=False)]
    if len(names) > len(list(backbone.parameters())):
        raise ValueError("two of its parameters are one tensor, which would be sent and averaged as two")
    return backbone


def _passed(backbone: nn.Module, config: ModelConfig, image_shape: Shape) -> Cost:
    """Return the cost of images, and check the outputs."""
    device = next(backbone.parameters()).device
    few, more = (torch.zeros(count, *image_shape, device=device) for count in (FEW, MORE))
    largest = 0

    def note(module: nn.Module, given: object, found: object) -> None:
        nonlocal largest
        if isinstance(found, Tensor):
            largest = max(largest, found.numel())

    handles = [module.register_forward_hook(note) for module in backbone.modules()]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        features = backbone.eval()(few)
    for handle in handles:
        handle.remove()
    _check_output(backbone, config, few, features)
    adds = counter.get_total_flops() // 2
    kept = _kept(backbone, more) - _kept(backbone, few)
    return Cost(adds // FEW, kept // (MORE - FEW), largest // FEW)


def _check_output(backbone: nn.Module, config: ModelConfig, images: Tensor, features: object) -> None:
    wanted = (len(images), cast(Backbone, backbone).features)
    if not isinstance(features, Tensor) or tuple(features.shape) != wanted:
        found = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"it gives {found} for {len(images)} images, should be {wanted}")
    if config.network.stages:
        staged = cast(Staged, backbone)
        with torch.no_grad():
            pooled = staged.last_map(staged.maps(images)).mean((2, 3))
        if tuple(pooled.shape) != wanted:
            raise ValueError(f"its last map gives {tuple(pooled.shape)} for {len(images)} images, should be {wanted}")


def _kept(backbone: nn.Module, images: Tensor) -> int:
    """Return the numbers that a training step on these images keeps for its backward pass."""
    kept: dict[int, Tensor] = {}  # tensors, so that no address comes twice

    def keep(tensor: Tensor) -> Tensor:
        kept[_address(tensor)] = tensor
        return tensor

    unpack: Callable[[Tensor], Tensor] = lambda tensor: tensor  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(keep, unpack):
        backbone.train()(images)
    given = {_address(tensor) for tensor in (*backbone.parameters(), *backbone.buffers(), images)}
    sizes = {address: tensor.untyped_storage().nbytes() for address, tensor in kept.items() if address not in given}
    return sum(sizes.values()) // 4


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
