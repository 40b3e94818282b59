"""Samples that are no images: the columns of a table or the channels of a series, and how all parties encode them.

Inside, every sample has three axes. A vector of d numbers is d channels at one place, (d, 1, 1); a series of several
channels is (channels, 1, length). Its numbers are standardised float32 values, where pixels are uint8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from fcil.core.errors import DataError
from fcil.core.files import json_digest
from fcil.core.settings_table import SettingsTable
from fcil.maths.moments import Moments, moments, pooled

Kind = Literal["image", "vector", "series"]
WORDS: dict[Kind, str] = {"image": "images", "vector": "rows", "series": "series"}
Values = NDArray[np.float64]
FARTHEST = 10.0  # deviations from the mean; a value beyond counts as this far, so that no single one rules a batch
MOST_CATEGORIES = 256  # texts of one column
LONGEST = 200  # characters of a name or a text
MOST_CHANNELS = 1 << 14


@dataclass(frozen=True)
class RawColumn:
    """A column before it is encoded: (samples, length) numbers, NaN where one is missing.

    Where it holds texts, these are listed in `texts`, and a number is the place of one.
    """

    name: str
    values: Values
    texts: tuple[str, ...] | None = None


@dataclass(frozen=True)
class RawTable:
    """The columns of some samples, each of the same length."""

    columns: tuple[RawColumn, ...]

    def __len__(self) -> int:
        return len(self.columns[0].values)

    def select(self, rows: Tensor) -> RawTable:
        """Return the table with only these samples."""
        places = rows.numpy()
        return RawTable(tuple(replace(column, values=column.values[places]) for column in self.columns))


# --- sums over the samples of one site ----------------------------------------------------------------------------


class ColumnSums(SettingsTable):
    """The sums of one column at one site: all that a site tells of it."""

    name: str = Field(min_length=1, max_length=LONGEST)
    missing: int = Field(0, ge=0)
    count: int = Field(0, ge=0, le=1 << 40)
    mean: float = 0.0
    squares: float = Field(0.0, ge=0)  # sum of squared differences from the mean
    categories: tuple[str, ...] | None = Field(None, max_length=MOST_CATEGORIES)  # the texts that occur, sorted

    @property
    def moments(self) -> Moments:
        """Return the moments of the numbers."""
        return Moments(self.count, self.mean, self.squares)


class TableSums(SettingsTable):
    """The sums of all columns at one site."""

    kind: Literal["vector", "series"] = "vector"
    length: int = Field(1, ge=1)
    label: str = ""  # the column of the classes; none in a series
    columns: tuple[ColumnSums, ...] = Field(min_length=1, max_length=MOST_CHANNELS)

    @classmethod
    def of(cls, table: RawTable, kind: Literal["vector", "series"], label: str = "", least: int = 1) -> Self:
        """Return the sums over a table; a text of fewer than `least` samples is not told, nor moments of so few."""
        found = tuple(_sums(column, least) for column in table.columns)
        return cls(kind=kind, length=table.columns[0].values.shape[1], label=label, columns=found)

    def in_order_of(self, other: TableSums) -> TableSums:
        """Return the sums with the columns in the order of another table, which has the same ones."""
        known = {column.name: column for column in self.columns}
        return self.model_copy(update={"columns": tuple(known[column.name] for column in other.columns)})


def _sums(column: RawColumn, least: int) -> ColumnSums:
    missing = int(np.isnan(column.values).sum())
    if column.texts is None:
        found = moments(column.values)
        known = found if found.count >= least else Moments(0, 0.0, 0.0)
        return ColumnSums(name=column.name, missing=missing, **asdict(known))
    present = column.values[~np.isnan(column.values)].astype(np.int64)
    counts = np.bincount(present, minlength=len(column.texts))
    told = [text for text, count in zip(column.texts, counts.tolist(), strict=True) if count >= max(least, 1)]
    return ColumnSums(name=column.name, missing=missing, categories=tuple(sorted(told)))


# --- the encoding that all parties agree on -----------------------------------------------------------------------


class Column(SettingsTable):
    """The encoding of one column: a standardised number, or a channel for each of its categories."""

    name: str = Field(min_length=1, max_length=LONGEST)
    mean: float = 0.0
    deviation: float = Field(1.0, gt=0)
    gaps: bool = False  # whether a channel of its own says that the number is missing
    categories: tuple[str, ...] | None = Field(None, max_length=MOST_CATEGORIES)

    @property
    def channels(self) -> int:
        """Return the number of channels that the column becomes."""
        return 1 + self.gaps if self.categories is None else len(self.categories)


class Columns(SettingsTable):
    """The encoding of all columns, the same at every party and fixed for a federation's life."""

    kind: Literal["vector", "series"] = "vector"
    length: int = Field(1, ge=1, le=1 << 20)
    label: str = ""
    each: tuple[Column, ...] = Field(min_length=1, max_length=MOST_CHANNELS)

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        names = [column.name for column in self.each]
        if len(set(names)) < len(names):
            raise ValueError("columns with a name each")
        if not 1 <= sum(column.channels for column in self.each) <= MOST_CHANNELS:
            raise ValueError(f"columns that become 1 to {MOST_CHANNELS:,} channels")
        return self

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the shape of a sample."""
        return sum(column.channels for column in self.each), 1, self.length

    @property
    def digest(self) -> str:
        """Return a name for the encoding."""
        return json_digest(self.model_dump(mode="json"))[:16]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns, without the label's."""
        return tuple(column.name for column in self.each)

    @property
    def channel_names(self) -> tuple[str, ...]:
        """Return what each channel is."""
        found: list[str] = []
        for column in self.each:
            if column.categories is not None:
                found += [f"{column.name} = {text}" for text in column.categories]
            else:
                found += [column.name, *([f"{column.name} is missing"] if column.gaps else [])]
        return tuple(found)

    def encode(self, table: RawTable) -> Tensor:
        """Return the samples of a table as float32 (samples, channels, 1, length).

        A missing number becomes the mean. A text that was not among the categories is in none of them.
        """
        known = {column.name: column for column in table.columns}
        found = np.zeros((len(table), *self.shape), np.float32)
        channel = 0
        for column in self.each:
            raw = known[column.name]
            part = found[:, channel : channel + column.channels, 0]
            if column.categories is None:
                _encode_number(part, column, raw.values)
            else:
                _encode_text(part, column.categories, raw)
            channel += column.channels
        return torch.from_numpy(found)


def _encode_number(part: NDArray[np.float32], column: Column, values: Values) -> None:
    with np.errstate(over="ignore"):
        standard = (values.astype(np.float64, copy=False) - column.mean) / column.deviation
    part[:, 0] = np.clip(np.nan_to_num(standard, nan=0.0, posinf=FARTHEST, neginf=-FARTHEST), -FARTHEST, FARTHEST)
    if column.gaps:
        part[:, 1] = np.isnan(values)


def _encode_text(part: NDArray[np.float32], categories: Sequence[str], raw: RawColumn) -> None:
    channels = {text: place for place, text in enumerate(categories)}
    places = np.array([channels.get(text, -1) for text in raw.texts or ()] or [-1])
    codes = raw.values[:, 0]
    rows = np.flatnonzero(~np.isnan(codes))
    chosen = places[codes[rows].astype(np.int64)]
    part[rows[chosen >= 0], chosen[chosen >= 0]] = 1


def agree(parts: Sequence[TableSums], names: Sequence[str] | None = None) -> Columns:
    """Return the encoding that follows from the sums of several sites, called by these names in errors."""
    called = names or [f"site {place + 1}" for place in range(len(parts))]
    first = parts[0]
    for name, part in zip(called, parts, strict=True):
        _check_alike(first, called[0], part, name)
    ordered = [part.in_order_of(first) for part in parts]
    each = [_agreed([part.columns[place] for part in ordered]) for place in range(len(first.columns))]
    gapless = first.kind == "series"
    columns = tuple(column.model_copy(update={"gaps": False}) if gapless else column for column in each)
    kept = tuple(column for column in columns if column.channels)
    if not kept:
        raise DataError("no column has a value to learn from")
    return Columns(kind=first.kind, length=first.length, label=first.label, each=kept)


def _agreed(parts: Sequence[ColumnSums]) -> Column:
    name, categories = parts[0].name, parts[0].categories
    if categories is not None:
        texts = sorted({text for part in parts for text in part.categories or ()})
        if len(texts) > MOST_CATEGORIES:
            raise DataError(f"column {name} has {len(texts)} different texts; at most {MOST_CATEGORIES} are encoded")
        return Column(name=name, categories=tuple(texts))
    found = pooled([part.moments for part in parts])
    return Column(
        name=name,
        mean=found.mean,
        deviation=found.deviation or 1.0,  # a column that never changes becomes zeros
        gaps=any(part.missing for part in parts),
    )


def _check_alike(first: TableSums, one: str, second: TableSums, other: str) -> None:
    """Refuse tables whose columns differ."""
    if (first.kind, first.length, first.label) != (second.kind, second.length, second.label):
        raise DataError(f"{one} and {other} differ in label, kind or length: they are not of the same federation")
    ours, theirs = ([column.name for column in part.columns] for part in (first, second))
    for owner, known, lacking, without in ((one, ours, theirs, other), (other, theirs, ours, one)):
        odd = [name for name in known if name not in lacking]
        if odd:
            raise DataError(f"{owner} has the column {odd[0]}, which {without} lacks; all need the same columns")
    for left, right in zip(first.columns, second.in_order_of(first).columns, strict=True):
        if (left.categories is None) != (right.categories is None):
            kinds = ["numbers" if part.categories is None else "texts" for part in (left, right)]
            raise DataError(
                f"column {left.name} holds {kinds[0]} at {one} and {kinds[1]} at {other}; "
                "name it in data.table.categories, or mend the cells that are no numbers"
            )
