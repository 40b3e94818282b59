"""Decoding of one image (a file, bytes, an array or a PIL image) to uint8 (channels, height, width).

Every part of `fcil` that reads images does it here: data sets, the Python API, `fcil predict` and a real site's folder.
"""

from __future__ import annotations

import io
import stat
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from fcil.core.errors import reason

Pixels = NDArray[np.uint8]
Picture = Path | bytes | NDArray[np.generic]
WIDE_MODES = ("I", "F")  # more than eight bits per channel; `I;16` and its like begin with I too
UPRIGHT = {  # EXIF's orientations other than 1 (upright), and the operation that turns the image upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class BrokenPictureError(Exception):
    """Raised for an image that cannot be decoded; the message says why."""


def decode(picture: Picture | Image.Image, size: int | None) -> Pixels:
    """Return the pixels (channels, height, width), resized to `size` x `size` where a size is given.

    A photo is first turned upright by its EXIF orientation. The shorter side then becomes `size`, by bilinear
    interpolation over areas, and the longer side is cropped about the centre; an image of that size keeps every bit.
    Files, bytes and PIL images become RGB, so that a grey image has three equal channels; an array (height, width) or
    (height, width, channels) keeps its channels.
    """
    return _pixels(picture, None, None if size is None else (size, size))


def decode_as(picture: Picture | Image.Image, shape: tuple[int, int, int]) -> Pixels:
    """Return the pixels as `decode` does, but with the channels (1 or 3), height and width of `shape`.

    A grey picture has three equal channels where three are wanted; a coloured one becomes its luma where one is.
    """
    channels, *sides = shape
    return _pixels(picture, "L" if channels == 1 else "RGB", (sides[0], sides[1]))


def _pixels(picture: Picture | Image.Image, mode: str | None, sides: tuple[int, int] | None) -> Pixels:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow, on oddities that it copes with
            image = _image(picture)
            if mode is not None and image.mode != mode:
                image = image.convert(mode)
            if sides is not None and image.size != sides[::-1]:
                image = ImageOps.fit(image, sides[::-1], Image.Resampling.BILINEAR)
            pixels = np.asarray(image)
    except BrokenPictureError:
        raise
    except UnidentifiedImageError as error:  # its own words name a buffer in memory
        raise BrokenPictureError("it is no image of a known format") from error
    except Exception as error:  # Pillow's readers raise nearly anything on damaged bytes
        raise BrokenPictureError(reason(error)) from error
    planes = pixels[:, :, None] if pixels.ndim == 2 else pixels
    return np.ascontiguousarray(planes.transpose(2, 0, 1))


def _image(picture: Picture | Image.Image) -> Image.Image:
    """Return an array as a grey or an RGB image, anything else as RGB."""
    if isinstance(picture, np.ndarray):
        pixels = _bytes_of(picture)
        return Image.fromarray(pixels[:, :, 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)
    if isinstance(picture, Image.Image):
        return _in_colour(upright(picture))
    if isinstance(picture, Path) and not stat.S_ISREG(picture.stat().st_mode):  # to open a pipe is to wait for ever
        raise BrokenPictureError("it is not a file")
    with Image.open(io.BytesIO(picture) if isinstance(picture, bytes) else picture) as opened:
        return _in_colour(upright(opened))


def upright(image: Image.Image) -> Image.Image:
    """Return a photo as its camera was held, by the EXIF orientation; without a readable one, the image itself."""
    image.load()  # Pillow's TIFF reader turns the image here, and removes the tag
    try:
        operation = UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # damaged EXIF data does not make the pixels unreadable
        return image
    return image if operation is None else image.transpose(operation)


def _in_colour(image: Image.Image) -> Image.Image:
    if image.mode.startswith(WIDE_MODES):
        raise BrokenPictureError(f"it has pixels of mode {image.mode}, not of eight bits")
    return image.convert("RGB")


def _bytes_of(array: NDArray[np.generic]) -> Pixels:
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3)) or not array.size:
        raise BrokenPictureError(f"it has the shape {array.shape}, not (height, width) or (height, width, 1 or 3)")
    if array.dtype.kind not in "iu" or array.min() < 0 or array.max() > 255:
        raise BrokenPictureError(f"it holds {array.dtype} values, not whole numbers from 0 to 255")
    return array.astype(np.uint8, copy=False)
