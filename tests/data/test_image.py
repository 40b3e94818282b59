from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.trees import paint

from fcil.data.datasets.image import BrokenPictureError, decode


def test_a_picture_of_the_wanted_size_keeps_every_bit(tmp_path: Path) -> None:
    pixels = paint(tmp_path / "a.png", 1)
    assert np.array_equal(decode(tmp_path / "a.png", 8), pixels.transpose(2, 0, 1))
    assert np.array_equal(decode((tmp_path / "a.png").read_bytes(), 8), pixels.transpose(2, 0, 1))


def test_a_grey_picture_has_three_equal_channels(tmp_path: Path) -> None:
    pixels = paint(tmp_path / "grey.png", 1, mode="L")
    assert np.array_equal(decode(tmp_path / "grey.png", 8), np.stack([pixels] * 3))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK"])
def test_every_mode_of_eight_bits_becomes_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.tiff" if mode == "CMYK" else "a.png")
    Image.new("RGB", (8, 8), "white").convert(mode).save(path)
    assert (decode(path, 4) == 255).all()


def test_the_longer_side_is_cropped_about_the_centre() -> None:
    pixels = np.zeros((4, 10), dtype=np.uint8)
    pixels[:, 3:7] = 200
    assert (decode(pixels, 4) == 200).all()
    assert (decode(pixels.T, 4) == 200).all()


def test_halving_a_checkerboard_gives_its_mean_away_from_the_edges() -> None:
    board = (np.indices((16, 16)).sum(0) % 2 * 200).astype(np.uint8)
    assert np.abs(decode(board, 8)[0, 1:-1, 1:-1].astype(int) - 100).max() <= 1


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([(), (1,), (3,)]), st.integers(4, 20))
def test_an_array_of_any_size_becomes_square_and_keeps_its_channels(
    height: int, width: int, channels: tuple[int, ...], size: int
) -> None:
    array = np.full((height, width, *channels), 77, dtype=np.int64)
    result = decode(array, size)
    assert result.shape == ((channels or (1,))[0], size, size)
    assert result.dtype == np.uint8
    assert (result == 77).all()
    assert decode(array, None).shape == ((channels or (1,))[0], height, width)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((4, 4), dtype=np.float32),
        np.full((4, 4), 256),
        np.full((4, 4), -1),
        np.zeros((4, 4, 2), dtype=np.uint8),
        np.zeros(4, dtype=np.uint8),
        np.zeros((0, 4), dtype=np.uint8),
        np.asarray(None),
    ],
)
def test_an_array_that_is_no_picture_is_broken(array: np.ndarray) -> None:
    with pytest.raises(BrokenPictureError, match="it h"):
        decode(array, 4)


def test_pixels_of_sixteen_bits_are_not_cut_silently(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 40_000, dtype=np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(BrokenPictureError, match="mode I"):
        decode(tmp_path / "deep.png", 8)


@given(st.sampled_from(["PNG", "JPEG", "BMP", "GIF", "WEBP"]), st.floats(0, 0.9), st.binary(max_size=20))
def test_damaged_bytes_are_decoded_or_broken_and_nothing_else(kind: str, part: float, noise: bytes) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16), "red").save(buffer, kind)
    whole = buffer.getvalue()
    try:
        assert decode(whole[: int(len(whole) * part)] + noise, 8).shape == (3, 8, 8)
    except BrokenPictureError as error:
        assert str(error)


def test_a_missing_file_is_broken(tmp_path: Path) -> None:
    with pytest.raises(BrokenPictureError, match="No such file"):
        decode(tmp_path / "none.png", 8)
