"""Series: a NumPy archive of numbers (samples, channels, length), and labels."""

from __future__ import annotations

import numpy as np

from fcil.core.errors import DataError
from fcil.data.columns import MOST_CHANNELS, RawColumn, RawTable
from fcil.data.datasets.config import DataConfig
from fcil.data.datasets.dataset import Source, raw_source
from fcil.data.datasets.manifest import Collection, hold_out
from fcil.data.datasets.npz import Array, class_labels, read_arrays
from fcil.data.datasets.registry import Dataset, register_dataset

NAMES = "series"  # in the place of `images` in a key of the archive


def open_series(config: DataConfig) -> Source:
    """Return the series of a .npz file with the keys series and labels, or train_series and so on."""
    path = config.place
    assert path is not None
    arrays = read_arrays(path, NAMES)
    divided = f"train_{NAMES}" in arrays
    keys = [(f"{part}{NAMES}", f"{part}labels") for part in (("train_", "test_") if divided else ("",))]
    stacks = [series_of(f"{path}: {key}", arrays[key]) for key, _ in keys]
    if len({stack.shape[1:] for stack in stacks}) > 1:
        raise DataError(f"{path}: series of shape {stacks[0].shape[1:]} for training and {stacks[1].shape[1:]}")
    for stack, (_, label_key) in zip(stacks, keys, strict=True):
        if arrays[label_key].shape != (len(stack),):
            raise DataError(f"{path}: {label_key} has the shape {arrays[label_key].shape}, should be ({len(stack)},)")
    labels, names = class_labels(path, arrays, [label for _, label in keys])
    if divided and config.test_fraction is not None:
        raise DataError(f"{path} has a test part of its own; leave data.test_fraction out")
    if divided:
        held_out = [False] * len(stacks[0]) + [True] * len(stacks[1])
    else:
        held_out = hold_out(labels, names, config.test_fraction, config.split_seed, path, "series")
    Collection(path, names, labels, held_out, (), "series")
    return raw_source("series", raw_series(np.concatenate(stacks)), "series", labels, held_out, names)


def raw_series(stack: Array) -> RawTable:
    """Return series (samples, channels, length) as columns."""
    return RawTable(
        tuple(RawColumn(f"channel {place}", stack[:, place].astype(np.float64)) for place in range(stack.shape[1]))
    )


def series_of(where: str, stack: Array) -> Array:
    """Return series once they are found to be some: finite numbers or NaN of three axes."""
    if stack.ndim != 3 or stack.dtype.kind not in "iuf" or not stack.size or stack.shape[1] > MOST_CHANNELS:
        raise DataError(f"{where} is {stack.dtype} {stack.shape}; it should be numbers of (samples, channels, length)")
    if stack.dtype.kind == "f" and bool(np.isinf(stack).any()):
        raise DataError(f"{where} holds infinite values; a missing value is written as NaN")
    return stack


register_dataset(
    Dataset(
        "series",
        "a NumPy archive of series and labels",
        open_series,
        path="file",
        divisible=True,
        kind="series",
    )
)
