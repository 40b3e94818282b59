"""CIFAR-100 in the layout of its official Python archive, found locally or downloaded with a checksum."""

from __future__ import annotations

import hashlib
import http.client
import os
import tarfile
import tempfile
import urllib.request
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fcil.core.errors import DataError, reason
from fcil.core.lock import locked
from fcil.core.settings_table import shown
from fcil.data.datasets.config import DataConfig
from fcil.data.datasets.dataset import Source, Split
from fcil.data.datasets.registry import Dataset, register_dataset
from fcil.data.datasets.safe_pickle import PickleError, read_pickle
from fcil.data.datasets.search_path import cache_folder, find_folder, is_file, search_path

FOLDER = "cifar-100-python"
ARCHIVE_URL = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
ARCHIVE_MD5 = "eb9058c3a382ffc7106e4002c42a8d85"
FILES = ("train", "test", "meta")
LARGEST = 1 << 28  # bytes; the training file has 155 million
TIMEOUT = 20  # seconds without an answer


def load_cifar100() -> Source:
    """Return CIFAR-100: 50,000 training and 10,000 test images of 32 x 32 pixels in 100 fine classes."""
    folder = _folder()
    names = _class_names(folder / "meta")
    return Source("cifar100", _split(folder / "train", len(names)), _split(folder / "test", len(names)), names)


def is_there() -> bool:
    """Say whether CIFAR-100's files are found locally."""
    return _found() is not None


def _found() -> Path | None:
    return find_folder(FOLDER, lambda folder: all(is_file(folder / name) for name in FILES))


def _folder() -> Path:
    """Return the folder with CIFAR-100's files, downloading them into the cache where there is a network."""
    found = _found()
    if found is not None:
        return found
    target = cache_folder()
    try:
        with locked(target / FOLDER):
            if not is_there():  # nor brought by another process, while this one waited
                _download(target)
    except (OSError, EOFError, http.client.HTTPException, tarfile.TarError, zlib.error) as error:
        looked = ", ".join(str(root / FOLDER) for root in search_path())
        raise DataError(
            f"CIFAR-100 was not found in {looked}, and downloading it failed ({error}). "
            f"Put the files {', '.join(FILES)} of cifar-100-python.tar.gz into one of these folders, "
            f"or set FCIL_DATA to the folder that holds {FOLDER}"
        ) from error
    return target / FOLDER


def _download(target: Path) -> None:
    partial = target / f"{FOLDER}.tar.gz.part"
    try:
        digest = hashlib.md5(usedforsecurity=False)
        with urllib.request.urlopen(ARCHIVE_URL, timeout=TIMEOUT) as answer, partial.open("wb") as file:
            while chunk := answer.read(1 << 20):
                digest.update(chunk)
                file.write(chunk)
        if digest.hexdigest() != ARCHIVE_MD5:
            raise DataError(
                f"{ARCHIVE_URL} has md5 {digest.hexdigest()} where {ARCHIVE_MD5} was expected; nothing was kept"
            )
        with tempfile.TemporaryDirectory(dir=target) as unpacked:
            with tarfile.open(partial) as archive:
                archive.extractall(unpacked, filter="data")
            (target / FOLDER).mkdir(exist_ok=True)
            for name in FILES:  # one by one, so that what an earlier attempt left there does not matter
                os.replace(Path(unpacked) / FOLDER / name, target / FOLDER / name)
    finally:
        partial.unlink(missing_ok=True)


def _read(path: Path) -> dict[bytes, Any]:
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise DataError(
                f"{path} has {size:,} bytes; it is not a file of CIFAR-100, which has fewer than {LARGEST:,}"
            )
        content = read_pickle(path.read_bytes())
    except (OSError, PickleError) as error:
        raise DataError(f"{path} cannot be read as a file of CIFAR-100: {reason(error)}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__} where CIFAR-100 has a dictionary")
    return content


def _class_names(path: Path) -> tuple[str, ...]:
    names = _read(path).get(b"fine_label_names")
    if not isinstance(names, list) or not names or not all(isinstance(name, bytes) for name in names):
        raise DataError(f"{path} has no list of fine_label_names; it is not CIFAR-100's meta file")
    return tuple(name.decode("utf-8", "replace") for name in names)


def _split(path: Path, classes: int) -> Split:
    content = _read(path)
    pixels, labels = content.get(b"data"), content.get(b"fine_labels")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != 3072:
        raise DataError(f"{path} has no uint8 table `data` of 3,072 columns; it is not a file of CIFAR-100")
    if not isinstance(labels, list) or len(labels) != len(pixels):
        raise DataError(f"{path} has no list `fine_labels` with one entry for each of its {len(pixels)} images")
    strange = [label for label in labels if type(label) is not int or not 0 <= label < classes]
    if strange:
        found = shown(strange[0]) if isinstance(strange[0], int) else f"a {type(strange[0]).__name__}"
        raise DataError(f"{path} has the label {found} where whole numbers from 0 to {classes - 1} belong")
    ids = torch.tensor(labels, dtype=torch.int64)
    return Split(torch.from_numpy(pixels.reshape(-1, 3, 32, 32).copy()), ids)


def _build(config: DataConfig) -> Source:
    return load_cifar100()


register_dataset(
    Dataset(
        "cifar100",
        "CIFAR-100, 32 x 32 pixels, 100 classes; found or downloaded",
        _build,
        ready=lambda _: is_there(),
    )
)
