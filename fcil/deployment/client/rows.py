"""The rows of the tables in a site's folder, each a sample: FOLDER/*.csv, tsv, txt or parquet, under agreed columns.

Tables may grow, and be added, split or renamed at any time. If one has changed, all are read. A row is known by its
content and by how many equal rows were found before it, so that two equal patients are two samples, and no row is a
second sample because its file was written anew. A table that lacks a column is left out until it changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from fcil.core.errors import DataError
from fcil.data.columns import Columns
from fcil.data.datasets.table_reader import SUFFIXES, Kinds, read_rows
from fcil.deployment.client.scan import FileStat, FoundFile, Tell, find_files

TOLD = 3  # broken rows of a table that are named


@dataclass(frozen=True)
class FoundRow:
    """A row of a table: its class, its place, what it is known by, and its numbers under the agreed columns."""

    class_name: str
    name: str
    digest: bytes
    values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def find_tables(folder: Path, tell: Tell) -> list[FoundFile]:
    """Return the tables of a folder, sorted by name."""
    return list(find_files(folder, SUFFIXES, tell))


def rows_of_tables(
    folder: Path, tables: list[FoundFile], columns: Columns, tell: Tell
) -> tuple[list[FoundRow], dict[str, FileStat | None]]:
    """Return the rows of all tables, and the stat values of each table: None if it changed while it was read."""
    seen, rows, equals = dict[str, FileStat | None](), list[FoundRow](), Counter[bytes]()
    for entry in tables:
        path = folder / entry.name
        if not entry.regular:  # opening a pipe would block
            tell(f"{path} is left out: it is not a file")
            continue
        try:
            found = list(_read(path, entry.name, columns, tell))
            unchanged = FileStat.of(path.stat())[:2] == entry.stat[:2]
        except DataError as error:
            tell(f"{path} is left out: {error}")
            found, unchanged = [], True
        except OSError:  # deleted meanwhile
            continue
        seen[entry.name] = entry.stat if unchanged else None
        for row in found if unchanged else ():
            equals[row.digest] += 1
            digest = sha256(row.digest + str(equals[row.digest]).encode()).digest()
            rows.append(FoundRow(row.class_name, row.name, digest, row.values))
    return rows, seen


def _read(path: Path, name: str, columns: Columns, tell: Tell) -> Iterator[FoundRow]:
    """Yield the rows of a table, each with a digest of its content."""
    broken: list[str] = []
    found = read_rows([path], Kinds.of(columns, labelled=True), broken.append)
    for sentence in broken[:TOLD]:
        tell(f"{sentence}; it is left out")
    if len(broken) > TOLD:
        tell(f"{path}: {len(broken) - TOLD} more rows are left out")
    values = columns.encode(found.table).numpy()
    for row, label, (_, number) in zip(values, found.labels, found.places, strict=True):
        digest = sha256(label.encode() + b"\0" + row.tobytes()).digest()
        yield FoundRow(label, f"{name}:{number}", digest, row)
