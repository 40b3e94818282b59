"""Parquet files with a column of images and a column of labels, as data set hubs offer them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fcil.core.errors import DataError, reason
from fcil.data.datasets.config import DataConfig
from fcil.data.datasets.image import Picture
from fcil.data.datasets.manifest import Collection, Origin, class_ids, hold_out
from fcil.data.datasets.registry import Dataset, register_dataset
from fcil.data.datasets.search_path import is_file, is_folder

BATCH = 256  # rows that are read at once


def open_parquet(config: DataConfig) -> Origin:
    """Return the images of a file, or of the files train*.parquet and test*.parquet of a folder."""
    path = config.place
    assert path is not None
    train = sorted(path.glob("train*.parquet")) if is_folder(path) else [path]
    test = sorted(path.glob("test*.parquet")) if is_folder(path) else []
    if not train or not is_file(train[0]):
        raise DataError(
            f"data.path: {path} should be a parquet file, or a folder with train*.parquet and perhaps test*.parquet"
        )
    if test and config.test_fraction is not None:
        raise DataError(f"{path} has a test part of its own; leave data.test_fraction out")

    def read() -> Collection:
        return _collection(path, train, test, config)

    keys = {"test_fraction", "split_seed", "image_column", "label_column"}
    root = path if is_folder(path) else path.parent
    return Origin("parquet", root, [*train, *test], config.image_size, config.model_dump(include=keys), read)


def _collection(path: Path, train: Sequence[Path], test: Sequence[Path], config: DataConfig) -> Collection:
    columns = [_labels(file, config) for file in (*train, *test)]
    values = [value for column in columns for value in column]
    names = _hub_names(train[0], config.label_column)
    if values and all(isinstance(value, str) for value in values):
        names = tuple(sorted(set(values)))
        places = {name: label for label, name in enumerate(names)}
        values = [places[value] for value in values]
    labels = class_ids(values, f"{path}: column {config.label_column}", names, "the hub's list of names in the file")
    names = names or tuple(str(label) for label in range(max(labels, default=-1) + 1))
    if test:
        trained_on = sum(len(column) for column in columns[: len(train)])
        held_out = [row >= trained_on for row in range(len(labels))]
    else:
        held_out = hold_out(labels, names, config.test_fraction, config.split_seed, path)
    counts = [len(column) for column in columns]
    pictures = _pictures(list(zip((*train, *test), counts, strict=True)), config.image_column)
    return Collection(path, names, labels, held_out, pictures)


def parquet_file(path: Path) -> Any:
    """Return a file as pyarrow opens it."""
    try:
        import pyarrow.parquet  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise DataError(f"reading {path} needs pyarrow; install fcil with its extra `parquet`") from error
    try:
        return pyarrow.parquet.ParquetFile(path)
    except Exception as error:  # pyarrow has many of its own for damaged bytes
        raise DataError(f"{path} cannot be read as a parquet file: {reason(error)}") from error


def _open(path: Path, column: str) -> Any:
    file = parquet_file(path)
    columns = file.schema_arrow.names
    if column not in columns:
        raise DataError(
            f"{path} has the columns {', '.join(columns)} and none named {column}; "
            "set data.image_column and data.label_column to the right ones"
        )
    return file


def _values(path: Path, column: str) -> Iterator[Any]:
    file = _open(path, column)
    try:
        for batch in file.iter_batches(batch_size=BATCH, columns=[column]):
            yield from batch.column(0).to_pylist()
    except Exception as error:  # as above
        raise DataError(f"{path}: column {column} cannot be read: {reason(error)}") from error


def _labels(path: Path, config: DataConfig) -> list[Any]:
    return list(_values(path, config.label_column))


def _pictures(parts: Sequence[tuple[Path, int]], column: str) -> Iterator[tuple[str, Picture]]:
    """Yield the pictures of files with so many labels each."""
    for path, labels in parts:
        rows = 0
        for rows, value in enumerate(_values(path, column), 1):
            if rows <= labels:
                yield f"{path} row {rows - 1}", _picture(value)
        if rows != labels:
            raise DataError(f"{path}: column {column} has {rows} rows where there are {labels} labels")


def _picture(value: Any) -> Picture:
    """Return the bytes of an image file, as such or within {bytes, path}, or an array of nested lists."""
    held = value.get("bytes") if isinstance(value, dict) else value
    if isinstance(held, bytes):
        return held
    try:
        return np.asarray(held)
    except ValueError:  # rows of differing lengths
        return np.asarray(None)


def _hub_names(path: Path, column: str) -> tuple[str, ...] | None:
    """Return the names of the classes that the Hugging Face hub notes in a file, if it does."""
    note = (_open(path, column).schema_arrow.metadata or {}).get(b"huggingface")
    try:
        names = json.loads(note)["info"]["features"][column]["names"] if note else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return tuple(str(name) for name in names) if isinstance(names, list) and names else None


register_dataset(
    Dataset(
        "parquet",
        "parquet files with a column of images and one of labels; needs the extra `parquet`",
        open_parquet,
        path="file",
        any_size=True,
        divisible=True,
    )
)
