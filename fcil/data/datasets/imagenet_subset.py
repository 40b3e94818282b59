"""ImageNet-Subset: 100 classes of ImageNet, 500 training and 100 test images each."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fcil.core.errors import DataError
from fcil.data.datasets.class_folders import class_folders, locate, of_files, pictures_in, read_words
from fcil.data.datasets.config import DataConfig
from fcil.data.datasets.manifest import Collection, Origin
from fcil.data.datasets.registry import Dataset, register_dataset
from fcil.data.datasets.search_path import is_folder

FOLDER = "imagenet-subset"
SIZE = 224  # of the publication
SEED = 1993
ALL_CLASSES, CLASSES = 1000, 100
TRAINING, TEST = 500, 100  # images per class
LAYOUT = "train/<class>/ and val/<class>/ with images"


def open_imagenet_subset(config: DataConfig) -> Origin:
    """Return ImageNet-Subset, chosen from a tree of all 1,000 classes, or a tree that is the subset already.

    The images of a class are those of train/ in the order of their names, then those of val/: the first 500 are for
    training, the next 100 for testing, so that a whole ImageNet gives both out of train/, and a subset that was
    divided before keeps its division.
    """
    root = locate(FOLDER, config.place, lambda folder: is_folder(folder / "train"), LAYOUT)
    folders = subset(class_folders(root / "train"), root)
    train, test = [], []
    for label, folder in enumerate(folders):
        pictures = _of_class(folder, root / "val" / folder.name)
        train += [(path, label) for path in pictures[:TRAINING]]
        test += [(path, label) for path in pictures[TRAINING:]]

    def read() -> Collection:
        words = read_words(root / "words.txt")
        return of_files(root, [words.get(folder.name, folder.name) for folder in folders], train, test)

    files = [*(path for path, _ in (*train, *test)), root / "words.txt"]
    return Origin(FOLDER, root, files, config.image_size or SIZE, {}, read)


def subset(folders: list[Path], root: Path) -> list[Path]:
    """Return the first 100 of the classes shuffled by numpy's seed 1993, in the order of their names."""
    if len(folders) == CLASSES:
        return folders
    if len(folders) != ALL_CLASSES:
        raise DataError(
            f"{root / 'train'} holds {len(folders)} folders; there should be the {ALL_CLASSES:,} classes of ImageNet, "
            f"or the {CLASSES} of its subset"
        )
    shuffled = np.random.RandomState(SEED).permutation(ALL_CLASSES)  # the recipe is defined on the legacy generator
    return [folders[place] for place in sorted(shuffled[:CLASSES])]


def _of_class(train: Path, val: Path) -> list[Path]:
    pictures = pictures_in(train)
    if len(pictures) < TRAINING:
        raise DataError(f"{train} holds {len(pictures)} images; there should be {TRAINING} at least")
    if len(pictures) < TRAINING + TEST and is_folder(val):
        pictures += pictures_in(val)
    if len(pictures) < TRAINING + TEST:
        raise DataError(
            f"{train} and {val} hold {len(pictures)} images; there should be {TRAINING + TEST} at least, "
            f"of which the first {TRAINING} are for training"
        )
    return pictures[: TRAINING + TEST]


register_dataset(
    Dataset(
        "imagenet-subset",
        "100 classes of ImageNet, in 64 or 224 pixels",
        open_imagenet_subset,
        path="optional",
        sizes=(64, SIZE),
    )
)
