"""A table: CSV or Parquet files with a row per sample, a column of labels, and columns of numbers and texts."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from pydantic import Field

from fcil.core.errors import DataError
from fcil.core.settings_table import SettingsTable
from fcil.data.datasets.cache import skipped_sentence
from fcil.data.datasets.config import DataConfig
from fcil.data.datasets.dataset import Source, raw_source
from fcil.data.datasets.manifest import Collection, hold_out
from fcil.data.datasets.registry import Dataset, register_dataset
from fcil.data.datasets.search_path import is_file, is_folder
from fcil.data.datasets.table_reader import find_kinds, in_label_order, read_rows, refuse, tables_in


class TableConfig(SettingsTable):
    """The columns of a table."""

    categories: tuple[str, ...] = Field((), description="columns whose numbers name categories, such as postcodes")
    ignore: tuple[str, ...] = Field((), description="columns that are left out, such as row numbers")


def open_table(config: DataConfig) -> Source:
    """Return the rows of a file, or of the files train* and test* of a folder."""
    path, own = config.place, cast(TableConfig, config.own)
    assert path is not None
    train, test = _files(path)
    if test and config.test_fraction is not None:
        raise DataError(f"{path} has a test part of its own; leave data.test_fraction out")
    skipped: list[str] = []
    kinds = find_kinds([*train, *test], config.label_column, own.categories, own.ignore)
    read = read_rows([*train, *test], kinds, skipped.append if config.broken == "skip" else refuse)
    if not read.labels:
        raise DataError(f"{path} has no rows")
    names = in_label_order(read.labels)
    places = {name: label for label, name in enumerate(names)}
    labels = [places[label] for label in read.labels]
    if test:
        held_out = [place in set(test) for place, _ in read.places]
    else:
        held_out = hold_out(labels, names, config.test_fraction, config.split_seed, path, "row")
    Collection(path, names, labels, held_out, (), "row")  # which refuses a class that is missing in one of the parts
    notes = skipped_sentence(skipped, "row")
    return raw_source("table", read.table, "vector", labels, held_out, names, config.label_column, notes)


def _files(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the files of both parts."""
    if not is_folder(path):
        if not is_file(path):
            raise DataError(f"data.path: {path} is neither a file nor a folder; it should be a CSV or Parquet file")
        return [path], []
    found = [tables_in(path, part) for part in ("train", "test")]
    if not found[0]:
        raise DataError(f"data.path: {path} should be a CSV or Parquet file, or a folder with train*.csv and test*.csv")
    return found[0], found[1]


register_dataset(
    Dataset(
        "table",
        "CSV or Parquet files with a row per sample and a column of labels",
        open_table,
        TableConfig,
        path="file",
        divisible=True,
        kind="vector",
    )
)
