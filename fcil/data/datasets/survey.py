"""A look at a folder of images before an experiment is made of it: classes, counts, sizes, colours, broken files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fcil.core.errors import DataError
from fcil.core.messages import derive_seed
from fcil.data.datasets.config import DataConfig
from fcil.data.datasets.image import BrokenPictureError, Pixels, decode
from fcil.data.datasets.imagefolder import open_imagefolder
from fcil.data.datasets.search_path import is_folder

TEST_FRACTION = 0.2  # of a folder without a test part


@dataclass(frozen=True)
class Survey:
    """The contents of a folder; sizes, colours and broken files are those of the images that were looked at."""

    root: Path
    class_names: tuple[str, ...]
    train: tuple[int, ...]  # images by class, without those found broken
    test: tuple[int, ...]
    divided: bool  # it has a test part of its own
    images: int
    looked: int
    sides: tuple[int, int, int]  # the shorter side in pixels: smallest, median, largest
    grey: int
    broken: tuple[str, ...]  # names, each with what is wrong with it


def look_at(folder: Path, seconds: float) -> Survey:
    """Survey an image folder; decoding its images, in a random order, ends after so many seconds."""
    divided = is_folder(folder / "test")
    fraction = None if divided else TEST_FRACTION
    config = DataConfig(source="imagefolder", path=str(folder), image_size=32, test_fraction=fraction)
    collection = open_imagefolder(config).read()
    if len(collection.class_names) < 2:
        raise DataError(f"{folder} has one class, {collection.class_names[0]}; to learn class after class takes two")
    pictures = list(collection.pictures)
    order = np.random.default_rng(derive_seed(0, "survey")).permutation(len(pictures))
    sides, grey, broken = list[int](), 0, dict[int, str]()
    began = time.monotonic()
    for place in order.tolist():
        name, picture = pictures[place]
        try:
            pixels = decode(picture, None)
        except BrokenPictureError as error:
            broken[place] = f"{name}: {error}"
        else:
            sides.append(min(pixels.shape[1:]))
            grey += _is_grey(pixels)
        if time.monotonic() - began > seconds:
            break
    if not sides:
        raise DataError(f"{folder} holds no image that can be decoded; {next(iter(broken.values()))}")
    whole = {label for place, label in enumerate(collection.labels) if place not in broken}
    for place, reason in sorted(broken.items()):
        label = collection.labels[place]
        if label not in whole:
            raise DataError(f"{folder}: no image of class {collection.class_names[label]} can be decoded; {reason}")
    parts: tuple[list[int], list[int]] = ([], [])
    for place, (label, testing) in enumerate(zip(collection.labels, collection.held_out, strict=True)):
        if place not in broken:
            parts[testing].append(label)
    collection.check(*parts)
    train, test = (_counts(part, len(collection.class_names)) for part in parts)
    spread = (min(sides), int(np.median(sides)), max(sides))
    named = tuple(broken[place] for place in sorted(broken))
    looked = len(sides) + len(broken)
    return Survey(
        folder, collection.class_names, train, test, divided, len(pictures), looked, spread, grey, named
    )  # fmt: skip


def _is_grey(pixels: Pixels) -> bool:
    return bool((pixels[0] == pixels[1]).all() and (pixels[1] == pixels[2]).all())


def _counts(labels: Sequence[int], classes: int) -> tuple[int, ...]:
    return tuple(np.bincount(labels, minlength=classes).tolist())
