"""Networks that are not trained: batch norms folded into the layers before them, weights in the order of the maps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn

from fcil.models.classifier import Classifier, copied, is_ours

MAPS = 4  # axes of a convolution's weights and of the maps that it gives


def folded(net: Classifier) -> Classifier:
    """Return a copy of a network for inference: the same outputs but for rounding, without most of its batch norms.

    The network itself does not change, and tensors that need no change are shared. One with a frozen part is returned
    as it is, because that part's outputs are kept by its tensors, and so is the work of other packages.
    """
    if _stays(net):
        return net
    fixed = copied(net).eval()
    fixed.__dict__.pop("_compiled_call_impl", None)  # which would call the network that was copied
    with torch.no_grad():
        for module in list(fixed.modules()):
            for layer, norm in _normed(module):
                _fold(module, layer, norm)
        for module in fixed.modules():
            for name, value in module._parameters.items():
                if value is not None:
                    module._parameters[name] = nn.Parameter(laid_out(value, fixed.layout), requires_grad=False)
    return fixed


def halved(net: Classifier) -> Classifier:
    """Return a copy of a folded network with the convolutions' weights as autocast would round them at every call."""
    if _stays(net):
        return net
    half = copied(net)
    for module in half.modules():
        if isinstance(module, nn.Conv2d):
            for name, value in module._parameters.items():
                if value is not None:
                    module._parameters[name] = nn.Parameter(value.bfloat16(), requires_grad=False)
    return half


def _stays(net: Classifier) -> bool:
    return bool(net.freeze) or not is_ours(net)


def laid_out(tensor: Tensor, layout: torch.memory_format) -> Tensor:
    """Return the weights of a convolution in a layout, and any other tensor as it is."""
    return tensor.contiguous(memory_format=layout) if tensor.ndim == MAPS else tensor


def _normed(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the names of the layers of a module whose output goes into a batch norm and nowhere else, and its name."""
    pairs = list(getattr(module, "norm_after", {}).items())
    if type(module) is nn.Sequential:
        pairs += pairwise(module._modules)
    for layer, norm in pairs:
        if isinstance(module._modules[layer], nn.Conv2d | nn.Linear) and _is_fixed(module._modules[norm]):
            yield layer, norm


def _is_fixed(module: nn.Module | None) -> bool:
    """Say whether a layer is a batch norm with running statistics, which in evaluation is one product and one sum."""
    return isinstance(module, nn.BatchNorm2d) and module.running_mean is not None


def _fold(module: nn.Module, layer: str, norm: str) -> None:
    """Put a norm's scale and shift, both fixed in evaluation, into the weights and bias of the layer before it."""
    before, after = module._modules[layer], module._modules[norm]
    assert isinstance(before, nn.Conv2d | nn.Linear) and isinstance(after, nn.BatchNorm2d)
    assert after.running_mean is not None and after.running_var is not None
    scale = after.weight / torch.sqrt(after.running_var + after.eps)
    shift = after.bias - after.running_mean * scale
    bias = shift if before.bias is None else before.bias * scale + shift
    before._parameters["weight"] = nn.Parameter(before.weight * scale.view(-1, *[1] * (before.weight.ndim - 1)))
    before._parameters["bias"] = nn.Parameter(bias)
    module._modules[norm] = nn.Identity()
