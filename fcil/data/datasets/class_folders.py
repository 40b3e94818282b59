"""Folders of pictures: one for each class."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from fcil.core.errors import DataError, reason
from fcil.data.datasets.manifest import Collection
from fcil.data.datasets.search_path import find_folder, is_file, search_path

SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")


def locate(name: str, path: Path | None, holds: Callable[[Path], bool], layout: str) -> Path:
    """Return the folder of a data set: the path given, or the first of its name in the search path."""
    found = (path if holds(path) else None) if path is not None else find_folder(name, holds)
    if found is None:
        looked = str(path) if path is not None else ", ".join(str(root / name) for root in search_path())
        raise DataError(
            f"{name} was not found in {looked}; the folder should hold {layout}. "
            f"Set data.path to it, or FCIL_DATA to the folder that holds {name}"
        )
    return found


def class_folders(tree: Path) -> list[Path]:
    """Return the folders of a tree, one per class, in the order of their names."""
    try:
        folders = [Path(entry.path) for entry in os.scandir(tree) if entry.is_dir() and not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{tree} cannot be read as a folder of classes: {reason(error)}") from error
    if not folders:
        raise DataError(f"{tree} holds no folders; there should be one for each class, with its images")
    return sorted(folders)


def pictures_in(folder: Path) -> list[Path]:
    """Return the pictures in a folder and in those below it, in the order of their names."""
    found = []
    for place, folders, names in os.walk(folder, onerror=_unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        pictures = (name for name in names if name.lower().endswith(SUFFIXES) and not name.startswith("."))
        found += [f"{place}/{name}" for name in pictures]
    if not found:
        raise DataError(f"{folder} holds no images; there should be files ending in {', '.join(SUFFIXES)}")
    return [Path(name) for name in sorted(found)]


def _unreadable(error: OSError) -> None:
    raise DataError(f"{error.filename} cannot be read as a folder of images: {reason(error)}") from error


def of_files(
    root: Path, class_names: Sequence[str], train: Sequence[tuple[Path, int]], test: Sequence[tuple[Path, int]]
) -> Collection:
    """Return the collection of these files, each with its class id."""
    samples = [*train, *test]
    return Collection(
        root,
        tuple(class_names),
        [label for _, label in samples],
        [False] * len(train) + [True] * len(test),
        [(str(path), path) for path, _ in samples],
    )


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file that are not empty."""
    try:
        lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {reason(error)}") from error
    if any("\0" in line for line in lines):  # no file's name can have it
        raise DataError(f"{path} is not a text file; it holds a zero byte")
    return lines


def read_words(path: Path) -> dict[str, str]:
    """Return the names of WordNet ids in a words.txt, one per line after its id and a tab; none if it is absent."""
    pairs = (line.partition("\t") for line in read_lines(path)) if is_file(path) else ()
    return {wnid.strip(): words.strip() for wnid, _, words in pairs}
