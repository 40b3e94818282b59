from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fcil.core.errors import DataError
from fcil.data.datasets.user_images import prepare

SHAPE = (3, 8, 6)


def image(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)


def only(images: Any, shape: tuple[int, int, int] = SHAPE) -> np.ndarray:
    (prepared,) = prepare(images, shape)
    return prepared


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_floats_from_0_to_1_are_the_levels_that_they_stand_for(dtype: torch.dtype) -> None:
    levels = torch.arange(48, dtype=torch.uint8).mul(5).view(8, 6)
    assert (only((levels.double() / 255).to(dtype)) == levels.numpy()).all()


@pytest.mark.parametrize("shape", [(3, 8, 6), (8, 6, 3)])
def test_the_axis_of_length_1_or_3_is_that_of_the_channels(shape: tuple[int, ...]) -> None:
    pixels = image(*shape)
    planes = pixels if shape[0] == 3 else pixels.transpose(2, 0, 1)
    assert np.array_equal(only(pixels), planes)
    assert np.array_equal(only(torch.from_numpy(pixels)), planes)
    assert len(list(prepare(np.stack([pixels] * 5), SHAPE))) == 5


def test_colour_becomes_luma_for_a_grey_model_and_sides_may_differ() -> None:
    red = np.zeros((16, 20, 3), dtype=np.uint8)
    red[:, :, 0] = 200
    assert (only(red, (1, 8, 6)) == 60).all()  # 0.299 of red
    assert only(red, (1, 8, 6)).shape == (1, 8, 6)


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (image(8, 6, 3) * 1.0, "the image .*: it holds floats from . to 25.; floats should be from 0 to 1"),
        (image(8, 6, 3) / 255 - 0.5, "floats should be from 0 to 1"),
        (np.full((8, 6), np.nan), "it holds NaN or infinite values"),
        (torch.full((3, 8, 6), torch.inf), "it holds NaN or infinite values"),
        (np.full((8, 6), 256), "not whole numbers from 0 to 255"),
        (np.zeros((8, 6), dtype=bool), "it holds bool values"),
        (np.zeros((8, 6), dtype=complex), "it holds complex128 values"),
        (np.full((8, 6), "a"), "it holds <U1 values"),
        (image(3, 8, 3), r"shape \(3, 8, 3\), and both its first and its last axis can be 1 or 3 channels"),
        (image(8, 6, 4), "neither its first nor its last axis can be"),
        (image(5, 8, 6), "neither its first nor its last axis can be"),
        (image(8), r"the shape \(8,\), not that of one image"),
        (image(2, 2, 8, 6, 3), "not that of one image"),
        (np.zeros((0, 6, 3)), "not that of one image"),
        ([image(8, 6), image(2, 8, 6, 3)], "image 1 .* not that of one image; many are a list or four dimensions"),
        (torch.zeros(3, 8, 6).to_sparse(), "a tensor without plain values"),
        (torch.zeros(3, 8, 6, device="meta"), "a tensor without plain values"),
        (torch.zeros(3, 8, 6, requires_grad=True) - 1, "floats should be"),
        (Image.new("I;16", (6, 8)), "mode I;16, not of eight bits"),
        (b"hello", "it is no image of a known format"),
        (None, "it is a NoneType, not a path, a PIL image, a numpy array or a tensor"),
        ([[0.5, 1.0]], "image 0 .* it is a list, not a path"),
        ("no\0file", "null"),
    ],
)
def test_what_is_no_image_gets_a_sentence(images: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        list(prepare(images, SHAPE))


def test_a_path_that_is_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not an image")
    os.mkfifo(tmp_path / "pipe.png")
    for name, reason in (
        ("notes.txt", "it is no image of a known format"),
        ("absent.jpg", "No such file or directory"),
        (".", "it is not a file"),
        ("pipe.png", "it is not a file"),
    ):
        path = tmp_path / name
        for images in (path, [Image.new("L", (6, 8)), str(path)]):
            with pytest.raises(DataError) as caught:
                list(prepare(images, SHAPE))
            assert str(caught.value) == f"{path} cannot be read as an image: {reason}"
