"""Photos whose pixels are stored as a turned camera stores them, with the EXIF orientation that says so."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

ORIENTATIONS = range(1, 9)


def scene(side: int = 32) -> np.ndarray:
    """Return a square image of four grey quarters, all different: no turn or flip leaves it as it is."""
    return np.kron(np.array([[0, 80], [160, 240]], dtype=np.uint8), np.ones((side // 2, side // 2), dtype=np.uint8))


def stored(upright: np.ndarray, orientation: int) -> np.ndarray:
    """Return the pixels as stored: EXIF says on which side of the upright image row 0 and column 0 are."""
    return {
        1: upright,  # row 0 at the top, column 0 on the left
        2: upright[:, ::-1],  # top, right
        3: upright[::-1, ::-1],  # bottom, right
        4: upright[::-1],  # bottom, left
        5: upright.T,  # row 0 on the left, column 0 at the top
        6: upright[:, ::-1].T,  # right, top
        7: upright[::-1, ::-1].T,  # right, bottom
        8: upright[::-1].T,  # left, bottom
    }[orientation]


def photo(orientation: int, kind: str = "JPEG", upright: np.ndarray | None = None) -> bytes:
    """Return an image file of the scene, or of another upright grey image."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    buffer = io.BytesIO()
    pixels = np.ascontiguousarray(stored(scene() if upright is None else upright, orientation))
    options = {"JPEG": {"quality": 100}, "WEBP": {"lossless": True}}.get(kind, {})
    Image.fromarray(pixels).save(buffer, kind, exif=exif, **options)
    return buffer.getvalue()


def write_photo(path: Path, orientation: int) -> Path:
    """Write a JPEG of the scene and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(photo(orientation))
    return path


def is_scene(pixels: np.ndarray) -> bool:
    """Say whether decoded pixels (channels, height, width) show the scene upright, up to JPEG's rounding."""
    return bool(np.abs(pixels.astype(int) - scene(pixels.shape[-1])).max() <= 2)
