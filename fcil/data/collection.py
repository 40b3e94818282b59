"""A data set before it is decoded: which pictures there are, their classes, and which of them are for testing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fcil.data.pictures import Picture
from fcil.errors import DataError
from fcil.wire import derive_seed


@dataclass(frozen=True)
class Collection:
    """Pictures in order, each with a name for messages, a class, and whether it is for testing."""

    class_names: tuple[str, ...]
    labels: Sequence[int]
    held_out: Sequence[bool]
    pictures: Iterable[tuple[str, Picture]]


@dataclass(frozen=True)
class Origin:
    """Where a collection comes from: all that its decoded images depend on, and how to read it."""

    name: str
    root: Path
    files: Sequence[Path]
    size: int | None  # pixels a side of the decoded images; none: as they are
    options: dict[str, Any]  # whatever else changes the result
    read: Callable[[], Collection]


def hold_out(
    labels: Sequence[int], class_names: Sequence[str], fraction: float | None, seed: int, where: Path
) -> list[bool]:
    """Return which samples are for testing: that share of each class, at least one, drawn by the seed."""
    if fraction is None:
        raise DataError(f"{where} has no test part; add one, or set data.test_fraction to the share to test on")
    ids = np.asarray(labels)
    held_out = np.zeros(len(ids), dtype=bool)
    for label, name in enumerate(class_names):
        members = np.flatnonzero(ids == label)
        if len(members) < 2:
            raise DataError(f"{where}: class {name} has {len(members)} image; to divide it takes two at least")
        random = np.random.default_rng(derive_seed(seed, "test part", label))
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        held_out[random.permutation(members)[:count]] = True
    return held_out.tolist()


def check_classes(labels: Sequence[int], held_out: Sequence[bool], class_names: Sequence[str], where: Path) -> None:
    """Raise a DataError unless there are classes, each with a training and a test image."""
    if not class_names:
        raise DataError(f"{where} holds no images")
    ids, testing = np.asarray(labels, dtype=np.int64), np.asarray(held_out, dtype=bool)
    for part, chosen in (("training", ~testing), ("test", testing)):
        counts = np.bincount(ids[chosen], minlength=len(class_names))
        empty = [class_names[label] for label in np.flatnonzero(counts == 0).tolist()]
        if empty:
            more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
            raise DataError(f"{where}: class {empty[0]}{more} has no {part} image; every class needs one")


def class_ids(values: Sequence[Any] | np.ndarray[Any, Any], where: str, class_names: Sequence[str] | None) -> list[int]:
    """Return labels as class ids, or raise a DataError unless they are whole numbers from 0, one for each class."""
    labels = np.asarray(values)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(
            f"{where} holds labels of type {labels.dtype} and shape {labels.shape}; "
            "it should be one whole number from 0 for each image"
        )
    top = len(class_names) - 1 if class_names else len(np.unique(labels)) - 1
    wrong = labels[(labels < 0) | (labels > top)]
    if len(wrong):
        raise DataError(f"{where} holds the label {wrong[0]}; labels should be the whole numbers from 0 to {top}")
    return [int(label) for label in labels]
