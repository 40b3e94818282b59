from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.examples import examples
from torch import Tensor

from fcil.core.messages import generator
from fcil.data.augment import AugmentConfig, as_floats, augment

EVERYTHING = AugmentConfig(crop_padding=2, flip=True, brightness=0.3)


def some_images(count: int = 16, channels: int = 2, height: int = 5, width: int = 7) -> Tensor:
    return torch.rand(count, channels, height, width, generator=generator(3))


@examples(30)
@given(st.integers(0, 4), st.integers(1, 5), st.integers(1, 6), st.integers(0, 99))
def test_a_crop_is_a_slice_of_the_padded_image(padding: int, height: int, width: int, seed: int) -> None:
    images = some_images(6, 2, height, width)
    cropped = augment(images, AugmentConfig(crop_padding=padding), generator(seed))
    tops, lefts = torch.randint(0, 2 * padding + 1, (2, 6), generator=generator(seed)).tolist()
    for image, crop, top, left in zip(images, cropped, tops, lefts, strict=True):
        padded = torch.zeros(2, height + 2 * padding, width + 2 * padding)
        padded[:, padding : padding + height, padding : padding + width] = image
        assert torch.equal(crop, padded[:, top : top + height, left : left + width])


def test_crops_reach_every_place() -> None:
    images = torch.zeros(400, 1, 3, 3)
    images[:, 0, 1, 1] = 1.0
    places = augment(images, AugmentConfig(crop_padding=1), generator(0)).nonzero()[:, 2:]
    assert {tuple(place) for place in places.tolist()} == {(row, column) for row in range(3) for column in range(3)}


def test_about_half_of_the_images_are_mirrored_left_to_right() -> None:
    images = some_images(200)
    flipped = augment(images, AugmentConfig(flip=True), generator(1))
    same = [torch.equal(image, result) for image, result in zip(images, flipped, strict=True)]
    mirrored = [torch.equal(image.flip(-1), result) for image, result in zip(images, flipped, strict=True)]
    assert all(one != other for one, other in zip(same, mirrored, strict=True))
    assert 70 < sum(mirrored) < 130


def test_brightness_scales_each_image_within_its_range() -> None:
    images = some_images(300) * 0.5 + 0.1
    factors = augment(images, AugmentConfig(brightness=0.4), generator(2)) / images
    for each in factors:
        assert each.max() - each.min() < 1e-5
    assert 0.6 <= factors.min() < 0.65
    assert 1.35 < factors.max() <= 1.4 + 1e-6


def test_brightness_stays_within_the_range_of_images() -> None:
    brightened = augment(torch.ones(50, 1, 2, 2), AugmentConfig(brightness=0.9), generator(2))
    assert brightened.max() == 1.0
    assert brightened.min() >= 0.0


def test_the_generator_alone_decides() -> None:
    images = some_images()
    before = torch.random.get_rng_state()
    first, again, other = (augment(images, EVERYTHING, generator(seed)) for seed in (7, 7, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_images_of_a_batch_are_changed_on_their_own() -> None:
    same = some_images(1).expand(32, -1, -1, -1)
    changed = augment(same, EVERYTHING, generator(7))
    assert len({image.numpy().tobytes() for image in changed}) > 25


def test_augmenting_leaves_its_input_alone() -> None:
    images = some_images()
    copy = images.clone()
    augment(images, EVERYTHING, generator(7))
    assert torch.equal(images, copy)


def test_without_augmentation_images_stay_and_nothing_is_drawn() -> None:
    images, draw = some_images(), generator(7)
    assert torch.equal(augment(images, AugmentConfig(), draw), images)
    assert torch.equal(draw.get_state(), generator(7).get_state())


def test_bytes_become_floats_from_zero_to_one() -> None:
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    floats = as_floats(levels)
    assert floats.dtype == torch.float32
    assert torch.equal(floats.flatten(), torch.arange(256) / 255)
    assert levels.flatten().tolist() == list(range(256))


@pytest.mark.parametrize("fields", [{"crop_padding": -1}, {"brightness": 1.0}, {"brightness": -0.1}, {"rotate": 3}])
def test_options_out_of_range_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(fields))):
        AugmentConfig(**fields)
