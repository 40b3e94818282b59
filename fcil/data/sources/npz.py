"""A numpy archive of images and labels."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcil.data.collection import Collection, Origin, class_ids, hold_out
from fcil.data.options import DataConfig
from fcil.errors import DataError

DIVIDED = ("train_images", "train_labels", "test_images", "test_labels")
WHOLE = ("images", "labels")
Array = NDArray[np.generic]


def open_npz(config: DataConfig) -> Origin:
    """Return the images of a .npz file with the keys above, and `class_names` if it has them.

    Images are uint8 (samples, height, width), (samples, height, width, 1 or 3) or (samples, 1 or 3, height, width).
    """
    path = config.place
    assert path is not None
    if not path.is_file():
        raise DataError(f"data.path: {path} is not a file; it should be a .npz archive")

    def read() -> Collection:
        return _collection(path, _arrays(path), config)

    options = {"test_fraction": config.test_fraction, "split_seed": config.split_seed}
    return Origin("npz", path.parent, [path], config.image_size, options, read)


def _arrays(path: Path) -> dict[str, Array]:
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} cannot be read as a .npz archive; numpy.savez writes one")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            keys = DIVIDED if set(DIVIDED) <= set(archive) else WHOLE
            if not set(keys) <= set(archive):
                raise DataError(
                    f"{path} holds {', '.join(sorted(archive)) or 'nothing'}; "
                    f"there should be the keys {', '.join(DIVIDED)}, or {' and '.join(WHOLE)}"
                )
            found = {key: archive[key] for key in (*keys, "class_names") if key in archive}
            strange = [key for key, value in found.items() if not isinstance(value, np.ndarray)]
            if strange:
                raise DataError(f"{path}: {strange[0]} is no array; numpy.savez writes an archive of arrays")
            return found
    except (OSError, ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read as a .npz archive of plain arrays: {error}") from error


def _collection(path: Path, arrays: dict[str, Array], config: DataConfig) -> Collection:
    names = _names(path, arrays.get("class_names"))
    divided = DIVIDED[0] in arrays
    keys = (DIVIDED[:2], DIVIDED[2:]) if divided else (WHOLE,)
    images = [_images(path, key, arrays[key]) for key, _ in keys]
    if len({stack.shape[-1] for stack in images}) > 1:
        raise DataError(f"{path}: {images[0].shape[-1]} channels for training and {images[1].shape[-1]} for testing")
    if len({stack.shape[1:] for stack in images}) > 1 and config.image_size is None:
        raise DataError(f"{path}: images of shape {images[0].shape[1:]} and {images[1].shape[1:]}; set data.image_size")
    for stack, (key, label_key) in zip(images, keys, strict=True):
        if arrays[label_key].shape != stack.shape[:1]:
            raise DataError(
                f"{path}: {label_key} has the shape {arrays[label_key].shape}; "
                f"it should be ({len(stack)},), one for each of {key}"
            )
    where = f"{path}: {' and '.join(label for _, label in keys)}"
    labels = class_ids(np.concatenate([arrays[label] for _, label in keys]), where, names)
    names = names or tuple(str(label) for label in range(max(labels, default=-1) + 1))
    if divided and config.test_fraction is not None:
        raise DataError(f"{path} has a test part of its own; leave data.test_fraction out")
    if divided:
        held_out = [False] * len(images[0]) + [True] * len(images[1])
    else:
        held_out = hold_out(labels, names, config.test_fraction, config.split_seed, path)
    pictures = (
        (f"{path}: {key}[{row}]", image)
        for (key, _), stack in zip(keys, images, strict=True)
        for row, image in enumerate(stack)
    )
    return Collection(path, names, labels, held_out, pictures)


def _names(path: Path, names: Array | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    if names.ndim != 1 or names.dtype.kind != "U" or not len(names):
        raise DataError(f"{path}: class_names is {names.dtype} {names.shape}; it should be a list of texts")
    return tuple(str(name) for name in names)


def _images(path: Path, key: str, stack: NDArray[Any]) -> NDArray[Any]:
    """Return a stack of images with the channels last."""
    if stack.dtype == np.uint8 and stack.ndim == 3:
        return stack[..., None]
    if stack.dtype == np.uint8 and stack.ndim == 4 and stack.shape[3] in (1, 3):
        return stack
    if stack.dtype == np.uint8 and stack.ndim == 4 and stack.shape[1] in (1, 3):
        return stack.transpose(0, 2, 3, 1)
    raise DataError(
        f"{path}: {key} is {stack.dtype} {stack.shape}; it should be uint8 of (samples, height, width), "
        "(samples, height, width, 1 or 3) or (samples, 1 or 3, height, width)"
    )
