"""The generator: images of any size from noise, by seed."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fcil.models.generator import Generator, build_generator

PUBLISHED = (256, 64, (3, 32, 32))


def noise(count: int, latent: int = 6) -> torch.Tensor:
    return torch.randn(count, latent, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(4, 4), (8, 8), (10, 14), (13, 12), (32, 32)])
def test_images_have_the_size_asked_for_and_values_of_images(size: tuple[int, int], channels: int) -> None:
    images = build_generator(6, 2, (channels, *size), seed=1)(noise(5))
    assert images.shape == (5, channels, *size)
    assert 0 <= images.min() < images.max() <= 1


def test_the_published_generator_has_the_published_layers() -> None:
    net = Generator(*PUBLISHED)
    linear, convolutions = 256 * 128 * 8 * 8 + 128 * 8 * 8, 9 * (128 * 128 + 128 * 64 + 64 * 3) + 3
    assert sum(parameter.numel() for parameter in net.parameters()) == linear + convolutions + 2 * (128 + 128 + 64)
    assert [tuple(layer.weight.shape) for layer in net.layers if isinstance(layer, nn.Conv2d)] == [
        (128, 128, 3, 3),
        (64, 128, 3, 3),
        (3, 64, 3, 3),
    ]


def test_a_generator_is_a_function_of_its_seed() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (build_generator(6, 2, (1, 8, 8), seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    drawn = [name for name in first if "linear" in name or first[name].ndim > 1]
    assert len(drawn) == 5
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in drawn)


def test_fresh_weights_fill_the_range_of_such_layers() -> None:
    net = build_generator(*PUBLISHED, seed=3)
    assert isinstance(net.layers[2], nn.Conv2d)
    for weight, inputs in ((net.linear.weight, 256), (net.linear.bias, 256), (net.layers[2].weight, 9 * 128)):
        bound = 1 / math.sqrt(inputs)
        assert 0.99 * bound < weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)
    norm = net.layers[0]
    assert isinstance(norm, nn.BatchNorm2d)
    assert bool((norm.weight == 1).all())
    assert not norm.bias.any()


def test_noise_can_be_fitted_as_well_and_training_or_not_is_the_same() -> None:
    net, given = build_generator(6, 2, (1, 8, 8), seed=1), noise(4).requires_grad_(True)
    net(given).square().mean().backward()
    assert given.grad is not None
    assert bool(given.grad.any(1).all())
    assert all(parameter.grad is not None for parameter in net.parameters())
    assert torch.equal(net.train()(given), net.eval()(given))
