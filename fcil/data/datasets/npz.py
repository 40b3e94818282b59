"""A numpy archive of images and labels."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcil.core.errors import DataError, reason
from fcil.core.memory_limit import memory_bytes
from fcil.data.datasets.config import DataConfig
from fcil.data.datasets.manifest import Collection, Origin, class_ids, hold_out
from fcil.data.datasets.registry import Dataset, register_dataset
from fcil.data.datasets.search_path import is_file

DIVIDED = ("train_images", "train_labels", "test_images", "test_labels")
WHOLE = ("images", "labels")
IMAGES = "images"
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
Array = NDArray[np.generic]


def open_npz(config: DataConfig) -> Origin:
    """Return the images of a .npz file with the keys above, and `class_names` if it has them.

    Images are uint8 (samples, height, width), (samples, height, width, 1 or 3) or (samples, 1 or 3, height, width).
    """
    path = config.place
    assert path is not None
    _check_file(path)

    def read() -> Collection:
        return _collection(path, read_arrays(path), config)

    options = {"test_fraction": config.test_fraction, "split_seed": config.split_seed}
    return Origin("npz", path.parent, [path], config.image_size, options, read)


def _check_file(path: Path) -> None:
    if not is_file(path):
        raise DataError(f"data.path: {path} is not a file; it should be a .npz archive")


def read_arrays(path: Path, what: str = IMAGES, labelled: bool = True) -> dict[str, Array]:
    """Return the arrays of an archive of images, or of what else its keys name; without labels, one array."""
    _check_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            keys = [
                *(_keys(path, set(members), what) if labelled else _lone(path, set(members), what)),
                *({"class_names"} & set(members)),
            ]
            _check_sizes(path, archive, {key: members[key] for key in keys})
            found = {}
            for key in keys:
                with archive.open(members[key]) as member:
                    found[key] = np.lib.format.read_array(member, allow_pickle=False)
            return found
    except DataError:
        raise
    except (
        Exception
    ) as error:  # what damaged bytes are to zipfile, to its decompressors and to numpy is nearly anything
        raise DataError(
            f"{path} cannot be read as a .npz archive of plain arrays: {reason(error)}; numpy.savez writes one"
        ) from error


def _lone(path: Path, there: set[str], what: str) -> tuple[str, ...]:
    if what not in there:
        raise DataError(f"{path} holds {', '.join(sorted(there)) or 'nothing'}; there should be the key {what}")
    return (what,)


def _keys(path: Path, there: set[str], what: str) -> tuple[str, ...]:
    wholes, parts = (tuple(key.replace(IMAGES, what) for key in keys) for keys in (WHOLE, DIVIDED))
    whole, divided = there & set(wholes), there & set(parts)
    if whole and divided:
        raise DataError(
            f"{path} holds both {' and '.join(sorted(whole))} and {' and '.join(sorted(divided))}; "
            f"there should be the keys {', '.join(parts)}, or {' and '.join(wholes)}, but not both"
        )
    keys = parts if divided else wholes
    if not set(keys) <= there:
        raise DataError(
            f"{path} holds {', '.join(sorted(there)) or 'nothing'}; "
            f"there should be the keys {', '.join(parts)}, or {' and '.join(wholes)}"
        )
    return keys


def _check_sizes(path: Path, archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo]) -> None:
    """Raise a DataError unless each array is as large as it claims, and all together fit into the memory.

    numpy takes the memory that an array claims before it reads the array.
    """
    for key, info in members.items():
        if not info.filename.endswith(".npy"):
            raise DataError(f"{path}: {key} is no array; numpy.savez writes an archive of arrays")
        with archive.open(info) as member:
            version = np.lib.format.read_magic(member)
            read_header = HEADERS.get(version)
            if read_header is None:
                raise DataError(f"{path}: {key} is not a plain array; numpy.savez writes an archive of arrays")
            shape, _, dtype = read_header(member)
            held = info.file_size - member.tell()
        if not dtype.hasobject and (math.prod(shape) * dtype.itemsize != held or not dtype.itemsize):
            raise DataError(
                f"{path}: {key} claims to be {dtype} {shape}, but {held} bytes cannot be that; it is damaged"
            )
    total, memory = sum(info.file_size for info in members.values()), memory_bytes()
    if total > memory:
        raise DataError(f"{path} holds arrays of {total:,} bytes, which do not fit into {memory:,} bytes of memory")


def _collection(path: Path, arrays: dict[str, Array], config: DataConfig) -> Collection:
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
    labels, names = class_labels(path, arrays, [label for _, label in keys])
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


def class_labels(path: Path, arrays: dict[str, Array], keys: list[str]) -> tuple[list[int], tuple[str, ...]]:
    """Return the labels under these keys, and the names of the classes."""
    names = _names(path, arrays.get("class_names"))
    labels = class_ids(_joined([arrays[key] for key in keys]), f"{path}: {' and '.join(keys)}", names)
    return labels, names or tuple(str(label) for label in range(max(labels, default=-1) + 1))


def _joined(parts: list[Array]) -> Array:
    """Return all labels; if one array has an impossible type, return that array alone, to be refused."""
    odd = [part for part in parts if part.dtype.kind not in "iu"]
    return odd[0] if odd else np.concatenate(parts)


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


register_dataset(Dataset("npz", "a NumPy archive of images and labels", open_npz, path="file", divisible=True))
