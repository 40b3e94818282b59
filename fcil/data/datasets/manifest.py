"""A data set before it is decoded: which pictures there are, their classes, and which of them are for testing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fcil.core.errors import DataError
from fcil.core.messages import derive_seed
from fcil.data.datasets.image import Picture


@dataclass(frozen=True)
class Collection:
    """Pictures in order, each with a name for messages, a class, and whether it is for testing."""

    place: Path  # for messages
    class_names: tuple[str, ...]
    labels: Sequence[int]
    held_out: Sequence[bool]
    pictures: Iterable[tuple[str, Picture]]
    noun: str = "image"  # of one sample, for messages

    def __post_init__(self) -> None:
        parts: tuple[list[int], list[int]] = ([], [])
        for label, testing in zip(self.labels, self.held_out, strict=True):
            parts[testing].append(label)
        self.check(*parts)

    def check(self, train: Sequence[int], test: Sequence[int]) -> None:
        """Raise a DataError unless these labels are of all the classes, in both parts."""
        if not self.class_names:
            raise DataError(f"{self.place} holds no images")
        for part, labels in (("training", train), ("test", test)):
            present = set(labels)
            empty = [name for label, name in enumerate(self.class_names) if label not in present]
            if empty:
                more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
                raise DataError(
                    f"{self.place}: class {empty[0]}{more} has no {part} {self.noun}; every class needs one"
                )


@dataclass(frozen=True)
class Origin:
    """The origin of a collection: all that its decoded images depend on, and how to read it."""

    name: str
    root: Path
    files: Sequence[Path]
    size: int | None  # pixels per side of the decoded images; none: as they are
    options: dict[str, Any]  # whatever else changes the result
    read: Callable[[], Collection]


def hold_out(
    labels: Sequence[int],
    class_names: Sequence[str],
    fraction: float | None,
    seed: int,
    where: Path,
    noun: str = "image",
) -> list[bool]:
    """Return which samples are for testing: that share of each class, at least one, drawn by the seed."""
    if fraction is None:
        raise DataError(f"{where} has no test part; add one, or set data.test_fraction to the share to test on")
    ids = np.asarray(labels)
    held_out = np.zeros(len(ids), dtype=bool)
    for label, name in enumerate(class_names):
        members = np.flatnonzero(ids == label)
        if len(members) < 2:
            raise DataError(f"{where}: class {name} has {len(members)} {noun}; to divide it takes two at least")
        random = np.random.default_rng(derive_seed(seed, "test part", label))
        count = min(max(round(fraction * len(members)), 1), len(members) - 1)
        held_out[random.permutation(members)[:count]] = True
    return held_out.tolist()


def class_ids(
    values: Sequence[Any] | np.ndarray[Any, Any],
    where: str,
    class_names: Sequence[str] | None,
    named_by: str = "class_names",
) -> list[int]:
    """Return labels as class ids, or raise a DataError unless they are whole numbers from 0, one for each class.

    `named_by` says in messages where the names of the classes come from.
    """
    try:
        labels = np.asarray(values)
    except ValueError as error:  # lists of differing lengths
        raise DataError(f"{where} holds lists; it should be one whole number from 0 for each image") from error
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(
            f"{where} holds labels of type {labels.dtype} and shape {labels.shape}; "
            "it should be one whole number from 0 for each image"
        )
    known = len(np.unique(labels))
    if class_names is not None and len(class_names) < known:
        raise DataError(
            f"{where} holds {known} different labels, but {named_by} has {len(class_names)}; "
            "there should be a name for each class"
        )
    top = len(class_names or range(known)) - 1
    wrong = labels[(labels < 0) | (labels > top)]
    if len(wrong):
        raise DataError(f"{where} holds the label {wrong[0]}; labels should be the whole numbers from 0 to {top}")
    return [int(label) for label in labels]
