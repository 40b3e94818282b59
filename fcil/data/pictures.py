"""One picture, from a file, from bytes or from an array, to uint8 (channels, height, width)."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

Pixels = NDArray[np.uint8]
Picture = Path | bytes | NDArray[np.generic]
WIDE_MODES = ("I", "F")  # more than eight bits a pixel; `I;16` and its like begin with I too


class BrokenPictureError(Exception):
    """A picture cannot be decoded; the message says why."""


def decode(picture: Picture, size: int | None) -> Pixels:
    """Return the pixels (channels, height, width), brought to `size` x `size` where a size is given.

    The picture's shorter side becomes `size`, by bilinear interpolation over areas, and the longer one is cropped about
    the centre; a picture that has the size already keeps every bit. Files and bytes become RGB, so that a grey picture
    has three equal channels; an array (height, width) or (height, width, channels) keeps its channels.
    """
    try:
        if isinstance(picture, np.ndarray):
            pixels = _bytes_of(picture)
            if size is not None and pixels.shape[:2] != (size, size):
                grey = pixels.ndim == 3 and pixels.shape[2] == 1
                pixels = np.asarray(_fitted(Image.fromarray(pixels[:, :, 0] if grey else pixels), size))
        else:
            with Image.open(io.BytesIO(picture) if isinstance(picture, bytes) else picture) as opened:
                if opened.mode.startswith(WIDE_MODES):
                    raise BrokenPictureError(f"it has pixels of mode {opened.mode}, not of eight bits")
                image = opened.convert("RGB")
            pixels = np.asarray(image if size is None else _fitted(image, size))
    except BrokenPictureError:
        raise
    except Exception as error:  # Pillow's readers raise nearly anything on damaged bytes
        raise BrokenPictureError(str(error) or type(error).__name__) from error
    planes = pixels[:, :, None] if pixels.ndim == 2 else pixels
    return np.ascontiguousarray(planes.transpose(2, 0, 1))


def _fitted(image: Image.Image, size: int) -> Image.Image:
    return ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)


def _bytes_of(array: NDArray[np.generic]) -> Pixels:
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3)) or not array.size:
        raise BrokenPictureError(f"it has the shape {array.shape}, not (height, width) or (height, width, 1 or 3)")
    if array.dtype.kind not in "iu" or array.min() < 0 or array.max() > 255:
        raise BrokenPictureError(f"it holds {array.dtype} values, not whole numbers from 0 to 255")
    return array.astype(np.uint8, copy=False)
