"""Rows of CSV and Parquet files as columns of numbers and of texts, read twice from start to end.

A file of any size is read row by row; only its numbers are kept. The first pass finds out which columns hold numbers,
the second one takes them.
"""

from __future__ import annotations

import codecs
import csv
import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fcil.core.errors import DataError, reason
from fcil.core.memory_limit import memory_bytes
from fcil.data.columns import LONGEST, MOST_CATEGORIES, MOST_CHANNELS, Columns, RawColumn, RawTable
from fcil.data.datasets.parquet import parquet_file
from fcil.data.datasets.search_path import is_file

SUFFIXES = (".csv", ".tsv", ".txt", ".parquet")
MISSING = frozenset({"", "?", "na", "n/a", "nan", "null"})  # cells without a value, in lower case
DELIMITERS = ",;\t|"
LONGEST_LINE = 1 << 20  # characters of the first line
BATCH = 4096  # rows of a Parquet file that are read at once
MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
WHOLE = re.compile(r"([+-]?\d+)\.0+")  # a class of 1.0 is the class 1

Tell = Callable[[str], None]  # what is wrong with a row, which is then left out
Rows = Iterator[tuple[int, list[str]]]  # the number of each row, from 1, and its cells


class BrokenRowError(Exception):
    """A row that cannot be used; the message says why."""


@dataclass(frozen=True)
class Kinds:
    """The kind of each column: those of numbers and those of texts, in the order of the file, and the label."""

    names: tuple[str, ...]
    texts: frozenset[str]
    label: str | None  # none: rows without a class, which are to be predicted

    @classmethod
    def of(cls, columns: Columns, labelled: bool) -> Kinds:
        """Return the kinds of columns that are agreed on."""
        texts = frozenset(column.name for column in columns.each if column.categories is not None)
        return cls(columns.names, texts, columns.label if labelled else None)


@dataclass
class Read:
    """The rows that were read: their columns, the text of each label, and where each row is from."""

    table: RawTable
    labels: list[str]
    places: list[tuple[Path, int]]


def refuse(sentence: str) -> None:
    """Raise a DataError for a broken row, unless the configuration leaves such rows out."""
    raise DataError(f"{sentence}; put it right, or set data.broken=skip to leave it out")


def stop(sentence: str) -> None:
    """Raise a DataError for a broken row."""
    raise DataError(sentence)


def tables_in(place: Path, part: str) -> list[Path]:
    """Return the files of a part, train or test, in a folder."""
    return sorted(file for file in place.glob(f"{part}*") if file.suffix.lower() in SUFFIXES and is_file(file))


def column_names(place: Path) -> list[str]:
    """Return the names of the columns of a file, or of the train* files of a folder."""
    return _header_of([place] if is_file(place) else tables_in(place, "train"))


def find_kinds(files: Sequence[Path], label: str, texts: Iterable[str] = (), ignored: Iterable[str] = ()) -> Kinds:
    """Return the kinds of the columns of some files: a column whose cells all are numbers holds numbers.

    `texts` are columns that hold categories although their cells are numbers; `ignored` are left out.
    """
    texts, ignored = tuple(texts), frozenset(ignored)
    header = _header_of(files)
    _check_names(files[0], header, {"data.label_column": [label]})
    _check_names(files[0], header, {"data.table.categories": texts, "data.table.ignore": ignored})
    names = tuple(name for name in header if name != label and name not in ignored)
    if not names:
        raise DataError(f"{files[0]} has no column beside {label}")
    seen: dict[str, set[str]] = {name: set() for name in texts}
    for path in files:
        places = [(name, place) for place, name in enumerate(_header_of([path])) if name in names]
        for _, cells in _rows(path):
            if len(cells) > max(place for _, place in places):
                for name, place in places:
                    _note(seen, name, cells[place])
    crowded = next((name for name in names if len(seen.get(name, ())) > MOST_CATEGORIES), None)
    if crowded is not None:
        example = min(seen[crowded])[:LONGEST]
        raise DataError(
            f"{files[0]}: column {crowded} holds more than {MOST_CATEGORIES} different texts, for instance {example}; "
            "leave it out with data.table.ignore, or write its numbers as 1234.5"
        )
    return Kinds(names, frozenset(seen), label)


def _note(seen: dict[str, set[str]], name: str, cell: str) -> None:
    """Note the text of a cell where its column holds texts or this cell is no number."""
    if cell.lower() in MISSING or len(seen.get(name, ())) > MOST_CATEGORIES:
        return
    if name in seen or not _is_number(cell):
        seen.setdefault(name, set()).add(cell)


def read_rows(files: Sequence[Path], kinds: Kinds, tell: Tell = refuse) -> Read:
    """Return the rows of some files under known kinds; `tell` is called for each row that is left out."""
    pile = _Pile(kinds)
    for path in files:
        pile.take_all(path, _header_of([path]), _rows(path), tell)
    return Read(pile.table(), pile.labels, pile.places)


def rows_of(mappings: Sequence[Mapping[str, Any]], kinds: Kinds) -> Read:
    """Return rows that a program passes as mappings from columns to values."""
    pile = _Pile(kinds)
    for number, row in enumerate(mappings, 1):
        named = {str(name).strip(): _cell(value).strip() for name, value in row.items()}
        pile.take_all(Path("sample"), list(named), iter([(number, list(named.values()))]), stop)
    return Read(pile.table(), pile.labels, pile.places)


@dataclass
class _Pile:
    """Columns that grow by rows."""

    kinds: Kinds
    numbers: dict[str, array[float]] = field(default_factory=dict)
    codes: dict[str, dict[str, int]] = field(default_factory=dict)  # of each column of texts, the place of each text
    labels: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # each label once, so that equal ones are one text
    places: list[tuple[Path, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.numbers = {name: array("d") for name in self.kinds.names}
        self.codes = {name: {} for name in self.kinds.texts}

    def take_all(self, path: Path, header: Sequence[str], rows: Rows, tell: Tell) -> None:
        """Add rows under a header; `tell` is called for each row that is left out."""
        kinds = self.kinds
        wanted = [*kinds.names, *([kinds.label] if kinds.label is not None else [])]
        lacking = next((name for name in wanted if name not in header), None)
        if lacking is not None:
            raise DataError(
                f"{path} has no column {lacking}, only {', '.join(header)}; "
                "it should have the columns that the model is trained on"
            )
        places = {name: header.index(name) for name in wanted}
        for number, cells in rows:
            try:
                self.take(cells, places, len(header))
            except BrokenRowError as error:
                tell(f"{path}: row {number} {error}")
            else:
                self.places.append((path, number))
            if number % BATCH == 0:
                self.check_memory(path)
        self.check_memory(path)

    def take(self, cells: Sequence[str], places: Mapping[str, int], columns: int) -> None:
        """Add a row, all of it or nothing."""
        if len(cells) != columns:
            raise BrokenRowError(f"has {len(cells)} cells under {columns} names")
        values = [self._value(name, cells[places[name]]) for name in self.kinds.names]
        if self.kinds.label is not None:
            label = label_text(cells[places[self.kinds.label]])
            self.labels.append(self.names.setdefault(label, label))
        for name, value in zip(self.kinds.names, values, strict=True):
            self.numbers[name].append(value)

    def _value(self, name: str, cell: str) -> float:
        if cell.lower() in MISSING:
            return math.nan
        known = self.codes.get(name)
        if known is not None:
            return known.setdefault(cell[:LONGEST], len(known))
        if not _is_number(cell):
            raise BrokenRowError(f"has {cell[:LONGEST]!r} in column {name}, which holds finite numbers")
        return float(cell)

    def check_memory(self, path: Path) -> None:
        """Refuse more rows than fit into half of the memory, as numbers and as the network's input."""
        needed, memory = 2 * 8 * len(self.places) * len(self.kinds.names), memory_bytes()
        if needed > memory:
            raise DataError(f"{path}: its rows need {needed:,} bytes, this machine has {memory:,}; take fewer rows")

    def table(self) -> RawTable:
        """Return the columns."""
        return RawTable(
            tuple(
                RawColumn(
                    name,
                    np.frombuffer(self.numbers[name], np.float64).reshape(-1, 1)
                    if self.numbers[name]
                    else np.empty((0, 1)),
                    tuple(self.codes[name]) if name in self.codes else None,
                )
                for name in self.kinds.names
            )
        )


def label_text(cell: str) -> str:
    """Return the name of a class as a cell gives it; a whole number is written without a point.

    >>> label_text("1.0"), label_text("01"), label_text("red")
    ('1', '01', 'red')
    """
    if cell.lower() in MISSING:
        raise BrokenRowError("has no label")
    if len(cell) > LONGEST:
        raise BrokenRowError(f"has a label of {len(cell)} characters")
    whole = WHOLE.fullmatch(cell)
    return whole[1] if whole else cell


def in_label_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return class names in the order of their numbers, or else of the alphabet.

    >>> in_label_order(["10", "9"]), in_label_order(["10", "9", "b"])
    (('9', '10'), ('10', '9', 'b'))
    """
    known = set(names)
    numeric = all(re.fullmatch(r"[+-]?\d{1,15}", name) for name in known)
    return tuple(sorted(known, key=lambda name: (int(name) if numeric else 0, name)))


def _is_number(cell: str) -> bool:
    """Say whether a cell is a finite number."""
    try:
        return math.isfinite(float(cell)) and "_" not in cell
    except ValueError:
        return False


# --- files --------------------------------------------------------------------------------------------------------


def _header_of(files: Sequence[Path]) -> list[str]:
    """Return the names of the columns of the first file, which the others have to have too."""
    path = files[0]
    header = parquet_file(path).schema_arrow.names if _is_parquet(path) else _csv_header(path)
    names = [str(name).strip() for name in header]
    if len(names) > MOST_CHANNELS:
        raise DataError(f"{path} has {len(names):,} columns; at most {MOST_CHANNELS:,} are read")
    if names and all(_is_number(name) for name in names):
        raise DataError(f"{path} begins with numbers; its first line should be the names of the columns")
    if "" in names:
        raise DataError(f"{path}: column {names.index('') + 1} has no name; the first line should name every column")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{path} has two columns named {twice}; every column needs a name of its own")
    return names


def _check_names(path: Path, header: Sequence[str], given: Mapping[str, Iterable[str]]) -> None:
    for key, names in given.items():
        absent = sorted(set(names) - set(header))
        if absent:
            raise DataError(f"{key}: {path} has no column {absent[0]}, only {', '.join(header) or 'none'}")


def _rows(path: Path) -> Rows:
    """Yield the number of each row, from 1, and its cells; empty lines do not count."""
    source = _parquet_rows(path) if _is_parquet(path) else _csv_rows(path)
    for number, cells in enumerate(source, 1):
        yield number, [cell.strip() for cell in cells]


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


def _csv_header(path: Path) -> list[str]:
    with _csv(path) as reader:
        return next(reader, [])


def _csv_rows(path: Path) -> Iterator[list[str]]:
    with _csv(path) as reader:
        next(reader, None)
        yield from (cells for cells in reader if cells)


@contextmanager
def _csv(path: Path) -> Iterator[Iterator[list[str]]]:
    """Open a CSV file; its delimiter is the most frequent candidate in the first line."""
    try:
        with path.open("rb") as raw:
            begin = raw.read(4)
        encoding = next((name for mark, name in MARKS.items() if begin.startswith(mark)), "utf-8")
        with path.open(encoding=encoding, newline="") as file:
            first = file.readline(LONGEST_LINE)
            delimiter = max(DELIMITERS, key=first.count)
            file.seek(0)
            yield csv.reader(file, delimiter=delimiter, strict=True)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text ({reason(error)}); save it as CSV with the encoding UTF-8"
        ) from error
    except (csv.Error, OSError) as error:
        raise DataError(f"{path} cannot be read as CSV: {reason(error)}") from error


def _parquet_rows(path: Path) -> Iterator[list[str]]:
    file = parquet_file(path)
    try:
        for batch in file.iter_batches(batch_size=BATCH):
            columns = [column.to_pylist() for column in batch.columns]
            yield from ([_cell(value) for value in row] for row in zip(*columns, strict=True))
    except Exception as error:  # as above
        raise DataError(f"{path} cannot be read as a parquet file: {reason(error)}") from error


def _cell(value: Any) -> str:
    """Return a value as a CSV file would have it."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
