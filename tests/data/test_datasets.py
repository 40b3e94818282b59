from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from sklearn.datasets import load_digits as sklearn_digits
from support.examples import examples

from fcil.core.errors import DataError
from fcil.data.datasets import DataConfig, load_source
from fcil.data.datasets import digits as digits_module
from fcil.data.datasets.dataset import Source, Split


@pytest.fixture(scope="module")
def digits() -> Source:
    return load_source(DataConfig(source="digits"))


def small_source(height: int = 6, width: int = 6, channels: int = 3, samples: int = 8) -> Source:
    draw = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (2 * samples, channels, height, width), generator=draw, dtype=torch.uint8)
    labels = torch.arange(2 * samples) % 2
    split = Split(images, labels)
    return Source("small", split, split.select(torch.arange(4)), ("even", "odd"))


def test_the_digits_are_1442_training_and_355_test_images_of_ten_classes(digits: Source) -> None:
    assert (len(digits.train), len(digits.test)) == (1442, 355)
    assert digits.image_shape == (1, 8, 8)
    assert digits.classes == 10
    assert digits.class_names == tuple("0123456789")
    assert digits.train.images.dtype == digits.test.images.dtype == torch.uint8


def test_every_fifth_image_of_a_digit_is_a_test_image(digits: Source) -> None:
    bunch = sklearn_digits()
    for digit in range(10):
        pixels = [np.rint(image * 255 / 16).astype(np.uint8).tolist() for image in bunch.images[bunch.target == digit]]
        held_out = digits.test.images[digits.test.labels == digit, 0].tolist()
        assert held_out == [image for place, image in enumerate(pixels, 1) if place % 5 == 0]
        trained_on = digits.train.images[digits.train.labels == digit, 0].tolist()
        assert trained_on == [image for place, image in enumerate(pixels, 1) if place % 5 != 0]


def test_the_digits_are_those_of_scikit_learn_byte_for_byte() -> None:
    with np.load(Path(digits_module.__file__).with_name(digits_module.FILE)) as arrays:
        images, labels = arrays["images"], arrays["labels"]
    assert images.dtype == labels.dtype == np.uint8
    digest = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
    assert digest == "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
    bunch = sklearn_digits()
    assert np.array_equal(images, bunch.images)
    assert np.array_equal(labels, bunch.target)


def test_no_training_image_is_a_test_image(digits: Source) -> None:
    trained_on = {image.numpy().tobytes() for image in digits.train.images}
    assert not trained_on & {image.numpy().tobytes() for image in digits.test.images}


def test_samples_per_class_keeps_the_first_training_images_of_each_class(digits: Source) -> None:
    reduced = load_source(DataConfig(source="digits", samples_per_class=7))
    assert torch.bincount(reduced.train.labels).tolist() == [7] * 10
    for digit in range(10):
        kept = reduced.train.images[reduced.train.labels == digit]
        assert torch.equal(kept, digits.train.images[digits.train.labels == digit][:7])
    assert torch.equal(reduced.test.images, digits.test.images)


def test_image_size_resizes_training_and_test_images() -> None:
    source = load_source(DataConfig(source="digits", image_size=16, samples_per_class=1))
    assert source.image_shape == (1, 16, 16)
    assert source.test.images.shape == (355, 1, 16, 16)


def test_halving_averages_squares_of_four_pixels(digits: Source) -> None:
    halved = digits.resized(4)
    expected = digits.train.images.double().view(-1, 1, 4, 2, 4, 2).mean((3, 5))
    assert halved.train.images.dtype == torch.uint8
    assert (halved.train.images.double() - expected).abs().max() <= 0.5


def test_doubling_repeats_pixels(digits: Source) -> None:
    doubled = digits.resized(16).test.images
    assert torch.equal(doubled, digits.test.images.repeat_interleave(2, 2).repeat_interleave(2, 3))


def test_resizing_to_the_same_size_changes_nothing(digits: Source) -> None:
    assert digits.resized(8) is digits


def test_an_oblong_image_becomes_square() -> None:
    assert small_source(height=6, width=8).resized(5).image_shape == (3, 5, 5)


@examples(25)
@given(st.integers(1, 4), st.integers(2, 9))
def test_mean_and_deviation_are_those_of_the_training_pixels_by_channel(channels: int, size: int) -> None:
    source = small_source(size, size, channels)
    pixels = source.train.images.numpy().astype(np.float64) / 255
    for channel in range(channels):
        assert source.mean[channel] == pytest.approx(pixels[:, channel].mean(), abs=1e-12)
        assert source.deviation[channel] == pytest.approx(pixels[:, channel].std(), abs=1e-12)


def test_the_deviation_of_constant_images_is_one_grey_level() -> None:
    split = Split(torch.full((3, 1, 2, 2), 7, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))
    assert Source("flat", split, split, ("only",)).deviation == pytest.approx((1 / 255,))


def test_the_digest_depends_on_every_part_of_the_data() -> None:
    source = small_source()

    def changed(train: Split = source.train, test: Split = source.test) -> str:
        return Source("small", train, test, source.class_names).digest

    pixel = source.train.images.clone()
    pixel[-1, -1, -1, -1] ^= 1
    test_pixel = source.test.images.clone()
    test_pixel[0, 0, 0, 0] ^= 1
    digests = [
        source.digest,
        changed(train=Split(pixel, source.train.labels)),
        changed(train=Split(source.train.images, 1 - source.train.labels)),
        changed(test=Split(test_pixel, source.test.labels)),
        changed(test=Split(source.test.images, 1 - source.test.labels)),
    ]
    assert len(set(digests)) == 5
    assert changed() == source.digest


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (torch.zeros(2, 1, 4, 4, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int32)),
    ],
)
def test_images_must_be_bytes_or_floats_with_one_label_each(images: torch.Tensor, labels: torch.Tensor) -> None:
    with pytest.raises(DataError, match="must be"):
        Split(images, labels)


@pytest.mark.parametrize("fields", [{"source": "mnist"}, {"image_size": 3}, {"samples_per_class": 0}])
def test_data_options_out_of_range_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(fields))):
        DataConfig(**fields)
