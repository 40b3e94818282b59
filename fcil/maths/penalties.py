"""Penalties on the distance from another model: FedProx and EWC."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fcil.maths.losses import cross_entropy

MU = 0.01  # FedProx
EWC_LAMBDA = 1000.0
CHUNK = 16  # samples whose gradients are held at once, each as large as the model


def proximal_term(parameters: Mapping[str, Tensor], global_parameters: Mapping[str, Tensor], mu: float = MU) -> Tensor:
    """Return FedProx's mu / 2 || w - w_global ||^2 over the named parameters; buffers of the global state do not count.

    >>> import torch
    >>> proximal_term({"w": torch.tensor([3.0, 1.0])}, {"w": torch.tensor([1.0, 1.0])}, mu=0.5).item()
    1.0
    """
    squares = [(value - global_parameters[name]).square().sum() for name, value in parameters.items()]
    return mu / 2 * torch.stack(squares).sum()


def ewc_penalty(
    parameters: Mapping[str, Tensor],
    anchor: Mapping[str, Tensor],
    fisher: Mapping[str, Tensor],
    strength: float = EWC_LAMBDA,
) -> Tensor:
    """Return EWC's lambda / 2 sum F (w - w_anchor)^2 over the parameters that the Fisher diagonal names.

    A head that has grown since is compared in its old rows; the new ones are free.
    """
    squares = []
    for name, importance in fisher.items():
        distance = parameters[name][_rows(importance)] - anchor[name][_rows(importance)]
        squares.append((importance * distance.square()).sum())
    return strength / 2 * torch.stack(squares).sum()


def _rows(tensor: Tensor) -> slice | tuple[()]:
    return slice(len(tensor)) if tensor.dim() else ()


def fisher_diagonal(
    net: nn.Module, images: Tensor, targets: Tensor, *, names: Collection[str] | None = None, chunk: int = CHUNK
) -> dict[str, Tensor]:
    """Return the mean over the samples of the squared gradient of each sample's own cross-entropy, by parameter.

    `names` are the parameters that it is taken of; absent: all.

    This is the empirical Fisher diagonal: the labels are the data's, not drawn from the model. The network must
    be in evaluation mode, where a sample does not depend on its batch. Without samples all is zero.
    """
    chosen = dict(net.named_parameters()).keys() if names is None else names
    total = {name: torch.zeros_like(value) for name, value in net.named_parameters() if name in chosen}
    for part in sample_gradients(net, images, targets, names=chosen, chunk=chunk):
        for name, gradient in part.items():
            total[name] += gradient.square().sum(0)
    return {name: value / max(len(targets), 1) for name, value in total.items()}


def sample_gradients(
    net: nn.Module, images: Tensor, targets: Tensor, *, names: Collection[str], chunk: int = CHUNK
) -> Iterator[dict[str, Tensor]]:
    """Yield the gradients of each sample's own cross-entropy by these parameters, of some samples after the others."""
    parameters = {name: value.detach() for name, value in net.named_parameters() if name in names}

    def sample_loss(weights: dict[str, Tensor], image: Tensor, target: Tensor) -> Tensor:
        logits = functional_call(net, weights, (image[None],))
        return cross_entropy(logits, target[None]).squeeze(0)

    gradients = vmap(grad(sample_loss), in_dims=(None, 0, 0))
    for image_part, target_part in zip(torch.split(images, chunk), torch.split(targets, chunk), strict=True):
        if len(target_part):
            yield gradients(parameters, image_part, target_part)


def add_fishers(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the sum of the Fisher diagonals of two tasks; rows of outputs that one of them lacked are the other's."""
    shapes = {name: max(value, second[name], key=Tensor.numel).shape for name, value in first.items()}
    return {name: _padded(first[name], shape) + _padded(second[name], shape) for name, shape in shapes.items()}


def _padded(tensor: Tensor, shape: torch.Size) -> Tensor:
    if tensor.shape == shape:
        return tensor
    return torch.cat([tensor, tensor.new_zeros(shape[0] - len(tensor), *shape[1:])])
