"""Prototype choice and perturbation, and the encoder's gradients that travel to the proxy."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fcil.maths.losses import binary_cross_entropy, cross_entropy, one_hot


def nearest_to_mean(features: Tensor) -> int:
    """Return the row nearest to the mean of the features: the prototype of their class."""
    return int((features - features.mean(0)).norm(dim=1).argmin())


def perturb(
    extract: Callable[[Tensor], Tensor],
    classify: Callable[[Tensor], Tensor],
    images: Tensor,
    labels: Tensor,
    deviation: Tensor,
    *,
    steps: int,
    learning_rate: float,
    noise: float,
    generator: torch.Generator,
) -> Tensor:
    """Return the images after gradient steps on L_GP, with fresh noise in feature space at each step.

    `deviation` is the standard deviation of each image's class in feature space, one row per image; `noise` is gamma.
    The images move independently of each other, so a batch equals its images one by one (but for their noise).
    """
    perturbed, target = images.clone(), None
    for _ in range(steps):
        perturbed.requires_grad_(True)
        features = extract(perturbed)
        if noise > 0:
            drawn = torch.randn(features.shape, generator=generator).to(features)
            features = features + noise * deviation * drawn
        logits = classify(features)
        target = one_hot(labels, logits.shape[1], logits) if target is None else target
        loss = binary_cross_entropy(logits, target).sum()
        (gradient,) = torch.autograd.grad(loss, perturbed)
        perturbed = (perturbed - learning_rate * gradient).detach()
    return perturbed


def gradient_at(encoder: nn.Module, image: Tensor, label: Tensor) -> dict[str, Tensor]:
    """Return the gradient of the encoder's cross-entropy at one image, by parameter.

    `torch.func` would load PyTorch's compiler, which takes a second of every process.
    """
    weights = {name: value.detach().requires_grad_(True) for name, value in encoder.named_parameters()}
    loss = cross_entropy(functional_call(encoder, weights, (image[None],)), label[None]).sum()
    return dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))


def encoder_gradients(encoder: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return, for each parameter of the encoder, its cross-entropy gradient at every image, images first.

    Differentiable in the images, which is what an inversion needs.
    """
    parameters = {name: value.detach() for name, value in encoder.named_parameters()}

    def loss(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(encoder, weights, (image[None],))
        return cross_entropy(logits, label[None]).squeeze(0)

    gradients: dict[str, Tensor] = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, images, labels)
    return gradients
