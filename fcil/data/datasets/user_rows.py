"""Rows and series from users (files, arrays or mappings), encoded like those of the data set."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fcil.core.errors import DataError
from fcil.data.columns import Columns, RawColumn, RawTable
from fcil.data.datasets.npz import class_labels, read_arrays
from fcil.data.datasets.series import NAMES, raw_series, series_of
from fcil.data.datasets.table_reader import Kinds, Tell, read_rows, rows_of, stop

RowInputs = str | os.PathLike[str] | NDArray[Any] | Tensor | Mapping[str, Any] | Sequence[Any]


@dataclass(frozen=True)
class EncodedRows:
    """Samples of a file: encoded, the number of each in the file, from 1, and its label where it was asked for."""

    inputs: Tensor
    numbers: tuple[int, ...]
    labels: tuple[str, ...] = ()


def read_file(path: Path, columns: Columns, labelled: bool = False, tell: Tell = stop) -> EncodedRows:
    """Return the samples of a file under an encoding; `tell` is called for each row that is left out."""
    if columns.kind == "series":
        return _read_series(path, columns, labelled)
    found = read_rows([path], Kinds.of(columns, labelled), tell)
    return EncodedRows(columns.encode(found.table), tuple(number for _, number in found.places), tuple(found.labels))


def _read_series(path: Path, columns: Columns, labelled: bool) -> EncodedRows:
    arrays = read_arrays(path, NAMES, labelled)
    stack = _fitting(series_of(f"{path}: {NAMES}", arrays[NAMES]), columns, str(path))
    labels: tuple[str, ...] = ()
    if labelled:
        numbers, names = class_labels(path, arrays, ["labels"])
        labels = tuple(names[number] for number in numbers)
        if len(labels) != len(stack):
            raise DataError(f"{path}: {len(labels)} labels for {len(stack)} series")
    return EncodedRows(columns.encode(raw_series(stack)), tuple(range(1, len(stack) + 1)), labels)


def prepare_rows(data: RowInputs | Any, columns: Columns) -> Tensor:
    """Return samples that a program passes, encoded: a file, an array or tensor of numbers, or mappings by column.

    An array has a column for each name in `columns.names`, in their order; of a series it is (samples, channels,
    length). One sample may come without the first axis.
    """
    if isinstance(data, (str, os.PathLike)):
        return read_file(Path(data), columns).inputs
    rows = [data] if isinstance(data, Mapping) else list(data) if isinstance(data, Sequence) else []
    if rows and all(isinstance(row, Mapping) for row in rows):
        return columns.encode(rows_of(rows, Kinds.of(columns, labelled=False)).table)
    return columns.encode(_from_array(_as_array(data), columns))


def _as_array(data: Any) -> NDArray[np.float64]:
    try:
        plain = data.detach().cpu().numpy() if isinstance(data, Tensor) else data
        array: NDArray[np.float64] = np.asarray(plain, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"the samples are a {type(data).__name__}; they should be a file, an array of numbers, or mappings"
        ) from error
    if np.isinf(array).any():
        raise DataError("the samples hold infinite values; a missing value is NaN")
    return array


def _from_array(array: NDArray[np.float64], columns: Columns) -> RawTable:
    if columns.kind == "series":
        return raw_series(_fitting(array[None] if array.ndim == 2 else array, columns, "the array"))
    texts = [column.name for column in columns.each if column.categories is not None]
    if texts:
        raise DataError(f"column {texts[0]} holds texts, so the samples cannot be an array; pass mappings by column")
    rows = array[None] if array.ndim == 1 else array
    if rows.ndim != 2 or rows.shape[1] != len(columns.names):
        raise DataError(f"the array has the shape {array.shape}, should be (samples, {len(columns.names)})")
    return RawTable(tuple(RawColumn(name, rows[:, place, None]) for place, name in enumerate(columns.names)))


def _fitting(stack: NDArray[Any], columns: Columns, where: str) -> NDArray[Any]:
    wanted = (len(columns.each), columns.length)
    if stack.ndim != 3 or stack.shape[1:] != wanted:
        raise DataError(f"{where} holds series of shape {stack.shape[1:]}; the model takes {wanted}")
    return stack
