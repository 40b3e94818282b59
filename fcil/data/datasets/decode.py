"""A collection of pictures, decoded one by one into arrays on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fcil.core.errors import DataError
from fcil.data.datasets.image import BrokenPictureError, Pixels, decode
from fcil.data.datasets.manifest import Collection

Progress = Callable[[int, int], None]  # pictures decoded, pictures in all


def images_file(part: str) -> str:
    """Return the name of the file with the images of `train` or `test`."""
    return f"{part}-images.npy"


def labels_file(part: str) -> str:
    """Return the name of the file with the labels of `train` or `test`."""
    return f"{part}-labels.npy"


class RowFile:
    """A .npy file of uint8 that grows by rows; written, not mapped, so that a full disk is an error, not a signal."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb")
        self.count = 0
        self.shape: tuple[int, ...] = ()  # of a row, once there is one

    def append(self, row: Pixels) -> None:
        """Write one more row, of the shape of those before it."""
        if not self.shape:
            self.shape = row.shape
            self._write_header()
        self.file.write(row.data)
        self.count += 1

    def _write_header(self) -> None:
        """Write the header for the rows so far; numpy pads it so that its length is that of any number of rows."""
        self.file.seek(0)
        header = {"descr": "|u1", "fortran_order": False, "shape": (self.count, *self.shape)}
        np.lib.format.write_array_header_1_0(self.file, header)

    def __enter__(self) -> RowFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self.file:
            if kind is None and self.shape:
                self._write_header()


def decode_collection(
    collection: Collection, folder: Path, size: int | None, skip_broken: bool, progress: Progress | None
) -> list[str]:
    """Write images and labels of both parts into a folder, and return the names of broken pictures left out."""
    labels: tuple[list[int], list[int]] = ([], [])
    skipped: list[str] = []
    shape: tuple[int, ...] = ()
    samples = zip(collection.pictures, collection.labels, collection.held_out, strict=True)
    with RowFile(folder / images_file("train")) as train, RowFile(folder / images_file("test")) as test:
        for done, ((name, picture), label, testing) in enumerate(samples, 1):
            try:
                pixels = decode(picture, size)
                shape = shape or pixels.shape
                if pixels.shape != shape:
                    raise BrokenPictureError(f"it has the shape {pixels.shape}, those before it have {shape}")
            except BrokenPictureError as error:
                if not skip_broken:
                    raise DataError(
                        f"{name} cannot be decoded: {error}; put it right, or set data.broken=skip to leave it out"
                    ) from error
                skipped.append(name)
            else:
                (test if testing else train).append(pixels)
                labels[testing].append(label)
            if progress is not None:
                progress(done, len(collection.labels))
    collection.check(*labels)  # what was left out may have been all of a class
    for part, ids in zip(("train", "test"), labels, strict=True):
        np.save(folder / labels_file(part), np.asarray(ids, dtype=np.int64))
    return skipped
