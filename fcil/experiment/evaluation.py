"""Evaluation of a model on labelled images: accuracy per class, and confusions."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fcil.core.errors import DataError
from fcil.data.datasets.user_rows import read_file
from fcil.experiment.predictor import Predictor


@dataclass(frozen=True)
class ClassResult:
    """The images of one class: how many, how many were named right, and which wrong class they got most often."""

    name: str
    images: int
    right: int
    taken_for: tuple[str, int] | None
    rejected: int = 0  # images whose answer is "none of these"; the other figures are about the likeliest class

    @property
    def accuracy(self) -> float:
        """Return the share that was right, in per cent."""
        return 100 * self.right / self.images


@dataclass(frozen=True)
class Evaluation:
    """Predictions of a model on labelled images."""

    classes: tuple[str, ...]  # of the model
    counts: Mapping[str, Mapping[str, int]]  # by true class: the images that were taken for each class
    unreadable: int
    rejected: Mapping[str, int] = field(default_factory=dict)  # by true class: images that are none of the classes

    @property
    def rows(self) -> list[ClassResult]:
        """Return the model's classes that have images, in the order of its outputs."""
        return [self._row(name) for name in self.classes if self._images(name)]

    @property
    def unknown(self) -> list[ClassResult]:
        """Return the classes that the model lacks, whose images it can only get wrong."""
        return [self._row(name) for name in self.counts if name not in self.classes and self._images(name)]

    @property
    def absent(self) -> list[str]:
        """Return the model's classes without images."""
        return [name for name in self.classes if not self._images(name)]

    @property
    def images(self) -> int:
        """Return the number of images of the model's classes."""
        return sum(row.images for row in self.rows)

    @property
    def right(self) -> int:
        """Return how many images were named right."""
        return sum(row.right for row in self.rows)

    @property
    def accuracy(self) -> float | None:
        """Return the share of right images of the model's classes in per cent; none is defined without images."""
        return 100 * self.right / self.images if self.images else None

    @property
    def mean_per_class(self) -> float | None:
        """Return the mean of the classes' accuracies in per cent, each class counted alike."""
        return sum(row.accuracy for row in self.rows) / len(self.rows) if self.rows else None

    def confusion(self) -> list[tuple[str, list[int]]]:
        """Return, for each class of the model and then each unknown one, the images taken for each class."""
        names = [*self.classes, *(row.name for row in self.unknown)]
        return [(name, [self.counts.get(name, {}).get(found, 0) for found in self.classes]) for name in names]

    def document(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        matrix = self.confusion()
        return {
            "images": self.images,
            "right": self.right,
            "accuracy": self.accuracy,
            "mean_per_class": self.mean_per_class,
            "classes": [{**_facts(row), "right": row.right, "accuracy": row.accuracy} for row in self.rows],
            "unknown": [_facts(row) for row in self.unknown],
            "absent": self.absent,
            "unreadable": self.unreadable,
            "confusion": {
                "rows": [name for name, _ in matrix],
                "columns": list(self.classes),
                "counts": [counts for _, counts in matrix],
            },
        }

    def _images(self, name: str) -> int:
        return sum(self.counts.get(name, {}).values())

    def _row(self, name: str) -> ClassResult:
        found = self.counts[name]
        wrong = [other for other in self.classes if other != name and found.get(other, 0)]
        taken = max(wrong, key=lambda other: found[other], default=None)  # the first of those that are as common
        return ClassResult(
            name,
            self._images(name),
            found.get(name, 0),
            None if taken is None else (taken, found[taken]),
            self.rejected.get(name, 0),
        )


def evaluate(
    predictor: Predictor, images: Mapping[str, Sequence[Path]], unreadable: Callable[[DataError], object]
) -> Evaluation:
    """Predict the images of each class; an unreadable image is reported and counted."""
    classes = tuple(dict.fromkeys(predictor.class_names))
    true = {file: name for name, files in images.items() for file in files}
    counts: dict[str, Counter[str]] = {name: Counter() for name in images}
    rejected: Counter[str] = Counter()
    for file, prediction in predictor.stream(true, unreadable):
        counts[true[file]][prediction.name] += 1
        rejected[true[file]] += prediction.rejected
    read = sum(found.total() for found in counts.values())
    return Evaluation(classes, counts, len(true) - read, rejected)


def evaluate_rows(predictor: Predictor, path: Path, tell: Callable[[str], object]) -> Evaluation:
    """Return what a model makes of the labelled rows or series in a file; one that cannot be read is counted."""
    assert predictor.columns is not None
    broken: list[str] = []

    def leave_out(sentence: str) -> None:
        tell(sentence)
        broken.append(sentence)

    rows = read_file(path, predictor.columns, True, leave_out)
    counts: dict[str, Counter[str]] = {name: Counter() for name in rows.labels}
    rejected: Counter[str] = Counter()
    for label, prediction in zip(rows.labels, predictor.ranked(rows.inputs), strict=True):
        counts[label][prediction.name] += 1
        rejected[label] += prediction.rejected
    return Evaluation(tuple(dict.fromkeys(predictor.class_names)), counts, len(broken), rejected)


def confusion_csv(evaluation: Evaluation) -> bytes:
    """Return the confusion matrix as CSV: a row per true class, a column per class that images were taken for."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["class", *evaluation.classes])
    writer.writerows([name, *counts] for name, counts in evaluation.confusion())
    return text.getvalue().encode("utf-8", "backslashreplace")  # a folder's name may be no text


def _facts(row: ClassResult) -> dict[str, Any]:
    taken = None if row.taken_for is None else {"class": row.taken_for[0], "images": row.taken_for[1]}
    return {"class": row.name, "images": row.images, "taken_for": taken, "none_of_these": row.rejected}
