"""The columns of a federation with tables: each site tells sums over its rows, and all agree on what follows from them.

A site writes a file of sums, which its people send to the server's. The file of columns is made from these, and goes
into the terms that every site accepts. No row leaves a site, and no text or moment of fewer than LEAST rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from fcil.core.errors import ConfigError, DataError
from fcil.core.files import read_json, write_json
from fcil.core.settings_table import explain
from fcil.data.columns import Columns, TableSums, agree
from fcil.data.datasets.table_reader import SUFFIXES, find_kinds, read_rows
from fcil.deployment.client.rows import find_tables
from fcil.experiment.config import Config

LEAST = 5  # rows that a text needs to be told, and values that a mean needs


def sums_of(folder: Path, label: str, categories: Sequence[str] = (), ignored: Sequence[str] = ()) -> TableSums:
    """Return the sums over the tables in a site's folder."""
    warnings: list[str] = []
    files = [folder / found.name for found in find_tables(folder, warnings.append) if found.regular]
    if not files:
        raise DataError(f"{folder} holds no table; it should hold files ending in {', '.join(SUFFIXES)}")
    kinds = find_kinds(files, label, categories, ignored)
    return TableSums.of(read_rows(files, kinds, warnings.append).table, "vector", label, LEAST)


def write_sums(path: Path, sums: TableSums) -> None:
    """Write a site's sums."""
    write_json(path, {"sums": sums.model_dump(mode="json")})


def write_columns(path: Path, files: Sequence[Path]) -> Columns:
    """Write the columns that follow from the sums of several sites, and return them."""
    columns = agree([_read(file) for file in files], [str(file) for file in files])
    write_json(path, {"columns": columns.model_dump(mode="json")})
    return columns


def _read(path: Path) -> TableSums:
    document = read_json(path)
    try:
        return TableSums(**document["sums"])
    except (KeyError, TypeError, ValidationError) as error:
        why = "; ".join(explain(error, TableSums, "")) if isinstance(error, ValidationError) else "it has no sums"
        raise DataError(f"{path} is not a site's sums: {why}; `fcil federation columns FOLDER` writes them") from error


def agreed_columns(config: Config) -> Columns | None:
    """Return the columns of a federation with tables; of one with images None."""
    if config.deployment.columns is None:
        return None
    path = Path(config.deployment.columns)
    document = read_json(path)
    try:
        return Columns(**document["columns"])
    except (KeyError, TypeError, ValidationError) as error:
        why = "; ".join(explain(error, Columns, "")) if isinstance(error, ValidationError) else "it has no columns"
        raise ConfigError(f"deployment.columns: {path} is not a file of agreed columns: {why}") from error
