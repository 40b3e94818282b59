"""Small data sets of image files, written anew for a test."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("ant", "bee", "cow")


def paint(path: Path, seed: int, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> np.ndarray:
    """Write a picture of random pixels, width by height, and return them; only a PNG keeps them to the bit."""
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


def write_tree(folder: Path, count: int, classes: Iterable[str] = CLASSES, first: int = 0) -> Path:
    """Write `count` pictures for each class and return the folder."""
    for label, name in enumerate(classes):
        for number in range(count):
            paint(folder / name / f"{number:03}.png", first + 1000 * label + number)
    return folder


def write_tiny(root: Path, train: int = 3, test: int = 2) -> Path:
    """Write a TinyImageNet of three classes in the official layout."""
    root.mkdir(parents=True, exist_ok=True)
    wnids = ("n03", "n01", "n02")  # the official list is in no order either
    (root / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in wnids))
    (root / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn02\tboa\nn04\tnot used\n")
    lines = []
    for wnid in wnids:
        for number in range(train):
            path = root / "train" / wnid / "images" / f"{wnid}_{number}.JPEG"
            paint(path, int(wnid[1:]) * 100 + number, (64, 64), "L" if number == 1 else "RGB")
        for number in range(test):
            name = f"val_{wnid}_{number}.JPEG"
            paint(root / "val" / "images" / name, number, (64, 64))
            lines.append(f"{name}\t{wnid}\t0\t0\t63\t63\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    return root
