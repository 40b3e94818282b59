"""The generator: images of any size from noise, by seed."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fcil.models.generator import (
    AnchoredGenerator,
    Generator,
    NormalisedGenerator,
    build_generator,
    drawn,
    load_generator,
    xavier,
)

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


def test_the_published_generators_of_mfcl_and_lander_have_the_published_sizes() -> None:
    """8.42 and 8.57 million parameters for images of 32 and 64 pixels, and 5.74 million."""

    def millions(net: nn.Module) -> float:
        return round(sum(parameter.numel() for parameter in net.parameters()) / 1e6, 2)

    with torch.device("meta"):
        small, large = (NormalisedGenerator(1000, 64, (3, side, side)) for side in (32, 64))
        anchored = AnchoredGenerator(512, 256, 64, (3, 32, 32), 256, 10)
    assert (millions(small), millions(large), millions(anchored)) == (8.42, 8.57, 5.74)


@pytest.mark.parametrize("size", [(8, 8), (10, 14), (20, 33)])
def test_a_generator_that_is_sent_makes_the_same_images_of_one_row_as_of_many(size: tuple[int, int]) -> None:
    made = drawn(lambda: NormalisedGenerator(6, 2, (3, *size)), seed=1)
    training = made.train()(noise(16)).detach()
    torch.testing.assert_close(training.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    state = {name: tensor.detach() for name, tensor in made.state_dict().items()}
    sent = load_generator(6, 2, (3, *size), state)
    assert sent(noise(5)).shape == (5, 3, *size)
    torch.testing.assert_close(sent(noise(5))[:1], sent(noise(5)[:1]), atol=1e-5, rtol=1e-4)
    assert not any(parameter.requires_grad for parameter in sent.parameters())
    with pytest.raises(ValueError, match="does not have the form"):
        load_generator(6, 3, (3, *size), state)


def test_rows_that_share_a_noisy_layer_differ_by_their_anchors_alone() -> None:
    made = drawn(lambda: AnchoredGenerator(5, 4, 2, (1, 8, 8), rows=7, group=3), 1, xavier)
    made.redraw(torch.Generator().manual_seed(2))
    anchors = noise(2, 5)[[0, 1, 0, 0, 1, 0, 1]]
    images = made(anchors).detach()
    assert images.shape == (7, 1, 8, 8)
    assert torch.allclose(images[0], images[2])
    assert not torch.allclose(images[0], images[3]), "a layer of its own"
    assert not torch.allclose(images[0], images[1])


def test_landers_weights_are_drawn_as_released() -> None:
    made = drawn(lambda: AnchoredGenerator(8, 256, 64, (3, 32, 32), 20, 10), 1, xavier)
    linear, norm, convolution = made.body.linear, made.body.layers[0], made.body.layers[2]
    assert isinstance(norm, nn.BatchNorm2d)
    assert isinstance(convolution, nn.Conv2d)
    assert linear.weight.std().item() == pytest.approx(math.sqrt(2 / (256 + 8192)), rel=0.02)
    assert linear.bias.std().item() == pytest.approx(1, rel=0.05)
    assert norm.weight.mean().item() == pytest.approx(1, abs=0.01)
    assert norm.weight.std().item() == pytest.approx(0.02, rel=0.3)
    assert convolution.weight.std().item() == pytest.approx(math.sqrt(2 / (9 * 256)), rel=0.02)
