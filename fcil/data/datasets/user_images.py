"""Images from users (paths, PIL images, arrays, tensors, one or many), prepared like those of a data set."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image
from torch import Tensor

from fcil.core.errors import DataError
from fcil.data.datasets.image import BrokenPictureError, Pixels, decode_as

Input = str | os.PathLike[str] | bytes | Image | NDArray[Any] | Tensor
Inputs = Input | Iterable[Input]
CHANNELS = (1, 3)


def prepare(images: Inputs, shape: tuple[int, int, int]) -> Iterator[Pixels]:
    """Yield each image as uint8 of `shape`, (channels, height, width), or raise a DataError that names it.

    A file, encoded bytes and a PIL image are decoded as the data sets' files are. An array or a tensor of two or three
    dimensions is one image, of four dimensions many; the axis of length 1 or 3 at either end of an image is that of
    the channels. Whole numbers count from 0 to 255, floats from 0 to 1, rounded to the 256 levels of training images.
    """
    for name, image in _each(images):
        try:
            yield decode_as(as_picture(image), shape)
        except BrokenPictureError as error:
            raise DataError(f"{name} cannot be read as an image: {error}") from error


def _each(images: Inputs) -> Iterator[tuple[str, Any]]:
    """Yield the images one by one, each with a name for messages."""
    if isinstance(images, (str, os.PathLike)):
        yield str(images), images
    elif isinstance(images, (bytes, Image)) or (isinstance(images, (np.ndarray, Tensor)) and images.ndim != 4):
        yield "the image", images
    elif isinstance(images, Iterable):
        for place, image in enumerate(images):
            yield (str(image) if isinstance(image, (str, os.PathLike)) else f"image {place}"), image
    else:
        yield "the image", images


def as_picture(image: Any) -> Path | bytes | Image | NDArray[Any]:
    """Return an image as the decoder takes it, or raise a BrokenPictureError."""
    if isinstance(image, (str, os.PathLike)):
        return Path(image)
    if isinstance(image, (bytes, Image)):
        return image
    if isinstance(image, Tensor):
        return _rows(_as_array(image))
    if isinstance(image, np.ndarray):
        return _rows(np.asarray(image))
    raise BrokenPictureError(f"it is a {type(image).__name__}, not a path, a PIL image, a numpy array or a tensor")


def _as_array(tensor: Tensor) -> NDArray[Any]:
    dense = tensor.detach()
    try:
        array: NDArray[Any] = (dense.float() if dense.is_floating_point() else dense).cpu().numpy()
    except (RuntimeError, TypeError, NotImplementedError) as error:  # sparse, quantised or without storage
        raise BrokenPictureError(f"it is a tensor without plain values ({tensor.dtype}, {tensor.layout})") from error
    return array


def _rows(array: NDArray[Any]) -> NDArray[Any]:
    """Return an image of any order of axes as whole numbers (height, width) or (height, width, channels)."""
    shape = array.shape
    if not array.size or array.ndim not in (2, 3):
        raise BrokenPictureError(f"it has the shape {shape}, not that of one image; many are a list or four dimensions")
    if array.ndim == 3:
        first, last = shape[0] in CHANNELS, shape[2] in CHANNELS
        if first == last:
            reason = "both its first and its last axis" if first else "neither its first nor its last axis"
            raise BrokenPictureError(f"it has the shape {shape}, and {reason} can be 1 or 3 channels")
        array = array.transpose(1, 2, 0) if first else array
    return _levels(array) if array.dtype.kind == "f" else array


def _levels(array: NDArray[Any]) -> Pixels:
    if not np.isfinite(array).all():
        raise BrokenPictureError("it holds NaN or infinite values")
    if array.min() < 0 or array.max() > 1:
        raise BrokenPictureError(
            f"it holds floats from {array.min():g} to {array.max():g}; floats should be from 0 to 1, "
            "and values from 0 to 255 whole numbers (uint8)"
        )
    levels: Pixels = np.rint(array * 255).astype(np.uint8)
    return levels
