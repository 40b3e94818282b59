"""Any folders of images: train/<class>/ and test/<class>/, or one tree <class>/ that is divided by a seed."""

from __future__ import annotations

from pathlib import Path

from fcil.core.errors import DataError
from fcil.data.datasets.class_folders import class_folders, of_files, pictures_in
from fcil.data.datasets.config import DataConfig
from fcil.data.datasets.manifest import Collection, Origin, hold_out
from fcil.data.datasets.registry import Dataset, register_dataset
from fcil.data.datasets.search_path import is_folder


def open_imagefolder(config: DataConfig) -> Origin:
    """Return the images below `data.path`; the folders name the classes."""
    root = config.place
    assert root is not None
    if not is_folder(root):
        raise DataError(
            f"data.path: {root} is not a folder; it should hold train/ and test/, or a folder for each class"
        )
    tree = root / "train" if is_folder(root / "train") else root
    tested = is_folder(root / "test")
    if tested and tree == root:
        raise DataError(f"{root} holds test/ but no train/; both belong beside each other")
    names, train = _labelled(tree)
    test: list[tuple[Path, int]] = []
    if tested:
        others, test = _labelled(root / "test")
        _check_same(root, names, others)
        if config.test_fraction is not None:
            raise DataError(f"{root} has a test part of its own; leave data.test_fraction out")
    else:
        labels = [label for _, label in train]
        held_out = hold_out(labels, names, config.test_fraction, config.split_seed, tree)
        test = [sample for sample, testing in zip(train, held_out, strict=True) if testing]
        train = [sample for sample, testing in zip(train, held_out, strict=True) if not testing]

    def read() -> Collection:
        return of_files(root, names, train, test)

    options = {"test_fraction": config.test_fraction, "split_seed": config.split_seed}
    return Origin("imagefolder", root, [path for path, _ in (*train, *test)], config.image_size, options, read)


def _labelled(tree: Path) -> tuple[list[str], list[tuple[Path, int]]]:
    folders = class_folders(tree)
    samples = [(path, label) for label, folder in enumerate(folders) for path in pictures_in(folder)]
    return [folder.name for folder in folders], samples


def _check_same(root: Path, train: list[str], test: list[str]) -> None:
    for part, own, other in (("train", train, test), ("test", test, train)):
        more = sorted(set(own) - set(other))
        if more:
            raise DataError(f"{root / part} has the class {more[0]}, which the other part lacks; both need the same")


register_dataset(
    Dataset(
        "imagefolder",
        "a folder of images for each class",
        open_imagefolder,
        path="folder",
        any_size=True,
        divisible=True,
    )
)
