"""The encoding of tables and series that sites agree on by sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fcil.core.errors import DataError
from fcil.data.columns import FARTHEST, Column, Columns, ColumnSums, RawColumn, RawTable, TableSums, agree

NAN = float("nan")


def numbers(*values: float, name: str = "age") -> RawColumn:
    return RawColumn(name, np.array(values)[:, None])


def texts(*cells: str | None, name: str = "colour") -> RawColumn:
    known = tuple(dict.fromkeys(cell for cell in cells if cell is not None))
    places = [NAN if cell is None else float(known.index(cell)) for cell in cells]
    return RawColumn(name, np.array(places)[:, None], known)


def sums(*columns: RawColumn, least: int = 1) -> TableSums:
    return TableSums.of(RawTable(columns), "vector", "label", least)


def test_numbers_are_standardised_by_the_sums_of_all_sites() -> None:
    found = agree([sums(numbers(1, 2)), sums(numbers(6, NAN))])
    assert found.each == (Column(name="age", mean=3.0, deviation=(14 / 3) ** 0.5, gaps=True),)
    encoded = found.encode(RawTable((numbers(3, NAN, 1e300),)))
    assert encoded[:, :, 0, 0].tolist() == [[0, 0], [0, 1], [FARTHEST, 0]]
    assert encoded.dtype == torch.float32
    assert found.channel_names == ("age", "age is missing")


def test_the_sums_of_a_site_say_no_single_row() -> None:
    assert sums(numbers(41.0), least=2).columns[0].moments.mean == 0.0
    told = sums(texts("red", "red", "blue"), least=2).columns[0]
    assert told.categories == ("red",)


def test_texts_become_a_channel_each_and_an_unknown_one_is_in_none() -> None:
    found = agree([sums(texts("red", "green")), sums(texts("blue", "red"))])
    assert found.channel_names == ("colour = blue", "colour = green", "colour = red")
    encoded = found.encode(RawTable((texts("red", None, "pink", "blue"),)))
    assert encoded[:, :, 0, 0].tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 0], [1, 0, 0]]


def test_a_constant_column_becomes_zeros_and_an_empty_one_stays_harmless() -> None:
    found = agree([sums(numbers(5, 5), numbers(NAN, NAN, name="empty"))])
    assert not found.encode(RawTable((numbers(5, 5), numbers(NAN, NAN, name="empty"))))[:, :2].any()


def test_columns_come_in_any_order_and_drift_is_named() -> None:
    one = sums(numbers(1, 2), numbers(3, 4, name="weight"))
    assert agree([one, sums(numbers(3, 4, name="weight"), numbers(1, 2))]).names == ("age", "weight")
    with pytest.raises(DataError, match="north has the column weight, which south lacks"):
        agree([one, sums(numbers(1, 2))], ["north", "south"])
    with pytest.raises(DataError, match="column age holds numbers at site 1 and texts at site 2"):
        agree([sums(numbers(1, 2)), sums(texts("a", "b", name="age"))])


def test_more_texts_than_can_be_encoded_are_refused() -> None:
    many = [sums(texts(*(f"{site}-{place}" for place in range(200)))) for site in range(2)]
    with pytest.raises(DataError, match="colour has 400 different texts; at most 256"):
        agree(many)


@pytest.mark.parametrize(
    "claim",
    [{"count": -1}, {"squares": -1.0}, {"mean": NAN}, {"mean": 1e39}, {"count": 1 << 41}, {"name": "x" * 201}],
)
def test_sums_that_cannot_be_are_refused(claim: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ColumnSums(**{"name": "age", **claim})


def test_columns_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValidationError, match="a name each"):
        Columns(each=(Column(name="a"), Column(name="a")))
    with pytest.raises(ValidationError, match="channels"):
        Columns(each=(Column(name="a", categories=()),))
    with pytest.raises(ValidationError):
        Column(name="a", deviation=0.0)


def test_a_series_keeps_its_length_and_says_nothing_of_gaps() -> None:
    raw = RawTable((RawColumn("left", np.array([[1.0, NAN, 3.0]])),))
    found = agree([TableSums.of(raw, "series")])
    assert found.shape == (1, 1, 3)
    assert found.encode(raw)[0, 0, 0].tolist() == [-1.0, 0.0, 1.0]
