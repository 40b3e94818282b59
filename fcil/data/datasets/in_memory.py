"""A data set from Python: pairs of image and label, or a torch Dataset, as they are in a program's memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fcil.core.errors import DataError
from fcil.data.datasets.cache import skipped_sentence
from fcil.data.datasets.config import DataConfig
from fcil.data.datasets.dataset import Source, Split
from fcil.data.datasets.image import BrokenPictureError, Pixels, decode
from fcil.data.datasets.manifest import Collection, class_ids, hold_out
from fcil.data.datasets.registry import Dataset, register_dataset
from fcil.data.datasets.user_images import as_picture

NAME = "python"
PLACE = Path("data")  # what messages call it: the argument's name
PARTS = ("train", "test")


def given_source(data: Any, config: DataConfig) -> Source:
    """Return the data set that a program passes: a `Source`, samples, or a mapping of `train` and `test` to samples.

    Samples are a sequence or a torch Dataset of (image, label), or of mappings with `data.image_column` and
    `data.label_column`. Images have any form that `Predictor.predict` takes: files, PIL images, arrays or tensors.
    Labels are whole numbers from 0, or names. A test part that is not given is held out by `data.test_fraction`.
    """
    if isinstance(data, Source):
        return data
    parts = _parts(data)
    read: dict[str, list[tuple[Pixels, Any]]] = {}
    skipped: list[str] = []
    for part, samples in parts.items():
        read[part] = list(_read(samples, part if len(parts) > 1 else "sample", config, skipped))
    _check_shapes(read)
    labels, names = _classes([label for samples in read.values() for _, label in samples], data)
    images = [pixels for samples in read.values() for pixels, _ in samples]
    if "test" in read:
        if config.test_fraction is not None:
            raise DataError("data: it has a test part of its own; leave data.test_fraction out")
        held_out = [part == "test" for part, samples in read.items() for _ in samples]
    else:
        held_out = hold_out(labels, names, config.test_fraction, config.split_seed, PLACE)
    Collection(PLACE, names, labels, held_out, ())  # which refuses a class that is missing in one of the parts
    testing = torch.tensor(held_out)
    whole = Split(torch.from_numpy(np.stack(images)), torch.tensor(labels, dtype=torch.int64))
    train, test = (whole.select(rows.nonzero().squeeze(1)) for rows in (~testing, testing))
    return Source(NAME, train, test, names, skipped_sentence(skipped))


def _parts(data: Any) -> dict[str, Any]:
    """Return the samples of each part, the training part first."""
    if not isinstance(data, Mapping):
        return {"train": data}
    if "train" not in data or not set(data) <= {*PARTS, "class_names"}:
        raise DataError(
            f"data: found a mapping with {', '.join(map(str, data)) or 'nothing'}; "
            "its keys should be train, and test and class_names if there are any"
        )
    return {part: data[part] for part in PARTS if part in data}


def _read(samples: Any, part: str, config: DataConfig, skipped: list[str]) -> Iterator[tuple[Pixels, Any]]:
    for place, sample in enumerate(_each(samples)):
        name = f"data: {part} {place}"
        image, label = _pair(sample, name, config)
        try:
            yield decode(as_picture(image), config.image_size), label
        except BrokenPictureError as error:
            if config.broken != "skip":
                raise DataError(
                    f"{name} cannot be read as an image: {error}; put it right, or set data.broken=skip to leave it out"
                ) from error
            skipped.append(name.removeprefix("data: "))


def _each(samples: Any) -> Iterator[Any]:
    """Yield the samples; a torch Dataset has a length and items, but need not say where it ends."""
    if isinstance(samples, (str, bytes, Tensor, np.ndarray)):
        raise DataError(f"data: found a {type(samples).__name__}; it should be a sequence or Dataset of (image, label)")
    if hasattr(samples, "__len__") and hasattr(samples, "__getitem__"):
        return (samples[place] for place in range(len(samples)))
    try:
        return iter(samples)
    except TypeError as error:
        raise DataError(
            f"data: found a {type(samples).__name__}; it should be a sequence or Dataset of (image, label)"
        ) from error


def _pair(sample: Any, name: str, config: DataConfig) -> tuple[Any, Any]:
    if isinstance(sample, Mapping):
        for column in (config.image_column, config.label_column):
            if column not in sample:
                raise DataError(
                    f"{name} has no {column}, only {', '.join(map(str, sample))}; "
                    "data.image_column and data.label_column should name image and label"
                )
        return sample[config.image_column], sample[config.label_column]
    if not isinstance(sample, Sequence) or isinstance(sample, (str, bytes)) or len(sample) != 2:
        raise DataError(f"{name} is a {type(sample).__name__}; it should be a pair (image, label)")
    return sample[0], sample[1]


def _check_shapes(read: Mapping[str, list[tuple[Pixels, Any]]]) -> None:
    shapes = {pixels.shape for samples in read.values() for pixels, _ in samples}
    if not shapes:
        raise DataError("data: it holds no images")
    if len({shape[0] for shape in shapes}) > 1:
        raise DataError("data: it holds images of one and of three channels; they should all have the same")
    if len(shapes) > 1:
        first, second, *_ = sorted(shapes)
        raise DataError(f"data: it holds images of shape {first} and {second}; set data.image_size")


def _classes(labels: list[Any], data: Any) -> tuple[list[int], tuple[str, ...]]:
    """Return the class id of each label, and the names of the classes.

    Names as labels are numbered in their order; numbers are named by `class_names`, or by the Dataset's `classes`.
    """
    plain = [label.item() if isinstance(label, (Tensor, np.generic)) and label.ndim == 0 else label for label in labels]
    if all(isinstance(label, str) for label in plain):
        names = tuple(sorted({str(label) for label in plain}))
        ids = {name: number for number, name in enumerate(names)}
        return [ids[str(label)] for label in plain], names
    odd = next((label for label in plain if isinstance(label, bool) or not isinstance(label, int)), None)
    if odd is not None:
        raise DataError(
            f"data: found the label {odd!r}; labels should all be whole numbers from 0, or all be names of classes"
        )
    given = _names(data)
    known = class_ids(plain, "data", given)
    return known, given or tuple(str(label) for label in range(max(known) + 1))


def _names(data: Any) -> tuple[str, ...] | None:
    if isinstance(data, Mapping):
        names = data.get("class_names")
        names = getattr(data["train"], "classes", None) if names is None else names
    else:
        names = getattr(data, "classes", None)
    plain = isinstance(names, Sequence) and not isinstance(names, str)
    if names is None or (plain and not all(isinstance(name, str) for name in names) and not isinstance(data, Mapping)):
        return None  # a Dataset's `classes` may be anything
    if not plain or not names or not all(isinstance(name, str) for name in names):
        raise DataError(f"data: class_names is {names!r}; it should be a list of texts, one for each class")
    return tuple(names)


def _not_given(config: DataConfig) -> Source:
    raise DataError(
        "data.source: python is data that a program passes to fcil.run(..., data=...); "
        "to continue its run, pass the same data again, with resume=True or to fcil.resume"
    )


register_dataset(
    Dataset(NAME, "images and labels that a program passes", _not_given, ready=lambda _: False, divisible=True)
)
