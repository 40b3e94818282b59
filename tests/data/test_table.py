"""Tables and series as data sets: what people's files look like, and what is wrong with some."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from fcil.core.errors import DataError
from fcil.data.datasets import DataConfig, load_source
from fcil.data.datasets.dataset import Source
from fcil.data.datasets.table_reader import find_kinds, read_rows

ROWS = "age,town,label\n1,Rome,a\n2,Oslo,a\n3,Rome,b\n4.5,,b\n"


def load(path: Path, **settings: Any) -> Source:
    return load_source(DataConfig(**{"source": "table", "path": str(path), "test_fraction": 0.5, **settings}))


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def cells(source: Source) -> list[Any]:
    assert source.raw is not None
    return [
        sorted(np.concatenate([part.columns[place].values for part in (source.raw.train, source.raw.test)]).ravel())
        for place in range(len(source.raw.train.columns))
    ]


@pytest.mark.parametrize(
    "content",
    [
        ROWS,
        ROWS.replace(",", ";"),
        ROWS.replace(",", "\t"),
        ROWS.replace("\n", "\r\n"),
        b"\xef\xbb\xbf" + ROWS.encode(),
        ROWS.encode("utf-16"),
        ROWS.replace("Rome", '" Rome"').replace("age", '"age"').replace("\n3", "\n\n3"),
    ],
    ids=["comma", "semicolon", "tab", "windows", "BOM", "UTF-16", "quoted"],
)
def test_a_table_is_read_however_it_was_saved(tmp_path: Path, content: str | bytes) -> None:
    source = load(write(tmp_path / "a.csv", content))
    assert source.class_names == ("a", "b")
    assert (len(source.train), len(source.test), source.kind) == (2, 2, "vector")
    assert cells(source)[0] == [1, 2, 3, 4.5]
    assert source.raw is not None
    assert source.raw.train.columns[1].texts == ("Rome", "Oslo")


@pytest.mark.parametrize(
    ("content", "settings", "sentence"),
    [
        (ROWS, {"label_column": "class"}, r"data.label_column: .*a.csv has no column class, only age, town, label"),
        ("1,2\n3,4\n", {"label_column": "1"}, "begins with numbers; its first line should be the names"),
        (ROWS.replace("town", ""), {}, "column 2 has no name"),
        (ROWS.replace("town", "age"), {}, "two columns named age"),
        (ROWS + "5,Rome\n", {}, "row 5 has 2 cells under 3 names; put it right, or set data.broken=skip"),
        (ROWS + "5,Rome,\n", {}, "row 5 has no label"),
        ("label\na\n", {}, "has no column beside label"),
        ("x,label\n", {}, "has no rows"),
        ("x,label\n1,a\n2,b\n3,b\n", {}, "class a has 1 row; to divide it takes two at least"),
        (
            ROWS.replace("Oslo", "Å").encode("latin-1"),
            {},
            "is not UTF-8 text .*; save it as CSV with the encoding UTF-8",
        ),
        (ROWS + '5,"Rome,a\n', {}, "cannot be read as CSV"),
        ("", {}, "data.label_column: .*has no column label, only none"),
        (ROWS, {"table": {"ignore": ["size"]}}, "data.table.ignore: .* has no column size"),
        (
            "x,label\n" + "".join(f"t{row},{row % 2}\n" for row in range(300)),
            {},
            "column x holds more than 256 different texts, for instance t0; leave it out with data.table.ignore",
        ),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_with_a_sentence(
    tmp_path: Path, content: str | bytes, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(DataError, match=sentence):
        load(write(tmp_path / "a.csv", content), **settings)


def test_broken_rows_are_left_out_if_asked_for(tmp_path: Path) -> None:
    source = load(write(tmp_path / "a.csv", ROWS + "5,Rome\n6,Rome,\n"), broken="skip")
    assert len(source.train) + len(source.test) == 4
    (warning,) = source.warnings
    assert warning.startswith("2 broken rows left out: ")


def test_an_infinite_number_makes_a_column_one_of_texts_and_a_missing_one_does_not(tmp_path: Path) -> None:
    def kinds(cell: str) -> frozenset[str]:
        return find_kinds([write(tmp_path / "a.csv", f"x,label\n1,a\n{cell},b\n")], "label").texts

    assert [kinds(cell) for cell in ("NaN", "?", "n/a", "")] == [frozenset()] * 4
    assert [kinds(cell) for cell in ("inf", "1e999", "1_000", "one")] == [frozenset({"x"})] * 4


def test_labels_that_are_numbers_are_classes_in_their_order(tmp_path: Path) -> None:
    rows = "".join(f"{row},{label}\n" for row, label in enumerate(["10", "9.0", "9", "10"]))
    assert load(write(tmp_path / "a.csv", "x,label\n" + rows)).class_names == ("9", "10")


def test_columns_of_numbers_may_name_categories_or_be_ignored(tmp_path: Path) -> None:
    source = load(write(tmp_path / "a.csv", ROWS), table={"categories": ["age"], "ignore": ["town"]})
    assert source.raw is not None
    assert [(column.name, column.texts) for column in source.raw.train.columns] == [("age", ("1", "2", "3", "4.5"))]


def test_a_folder_has_a_test_part_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", ROWS)
    write(tmp_path / "test.csv", "label,town,age\na,Rome,7\nb,Rome,8\n")
    source = load(tmp_path, test_fraction=None)
    assert (len(source.train), len(source.test)) == (4, 2)
    assert source.raw is not None
    assert source.raw.test.columns[0].values.ravel().tolist() == [7, 8]
    with pytest.raises(DataError, match="a test part of its own"):
        load(tmp_path)


def test_parquet_gives_what_csv_gives(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    columns = {"age": [1, 2, 3, 4.5], "town": ["Rome", "Oslo", "Rome", None], "label": list("aabb")}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    ours, theirs = load(tmp_path / "a.parquet"), load(write(tmp_path / "a.csv", ROWS))
    assert str(ours.raw) == str(theirs.raw)
    with pytest.raises(DataError, match=r"b.parquet cannot be read as a parquet file"):
        load(write(tmp_path / "b.parquet", "PAR1"))


def test_parquet_without_its_extra_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match="needs pyarrow; install fcil with its extra `parquet`"):
        load(write(tmp_path / "a.parquet", "PAR1"))


CELL = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12)


@examples(60)
@given(
    rows=st.lists(st.tuples(st.floats(allow_nan=False, allow_infinity=False), CELL), min_size=1, max_size=8),
    delimiter=st.sampled_from(",;\t|"),
)
def test_every_row_comes_back_as_it_was_written(tmp_path_factory: Any, rows: list[Any], delimiter: str) -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerows([("number", "text", "label"), *((value, f"x{cell}", "a") for value, cell in rows)])
    path = tmp_path_factory.mktemp("table") / "a.csv"
    path.write_bytes(text.getvalue().encode())
    found = read_rows([path], find_kinds([path], "label"))
    numbers, texts = found.table.columns
    assert numbers.values.ravel().tolist() == [value for value, _ in rows]
    assert texts.texts is not None
    assert [texts.texts[int(place)] for place in texts.values.ravel()] == [f"x{cell}".strip() for _, cell in rows]


def test_what_does_not_fit_into_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcil.data.datasets.table_reader.memory_bytes", lambda: 100)
    with pytest.raises(DataError, match="its rows need 128 bytes, this machine has 100; take fewer rows"):
        load(write(tmp_path / "a.csv", ROWS))


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"series": np.zeros((4, 3))}, r"it should be numbers of \(samples, channels, length\)"),
        ({"series": np.full((4, 1, 3), np.inf)}, "holds infinite values"),
        ({"series": np.zeros((4, 1, 3)), "labels": np.zeros(3, int)}, r"labels has the shape \(3,\), should be \(4,\)"),
        ({"images": np.zeros((4, 1, 3))}, "there should be the keys train_series"),
    ],
)
def test_an_archive_without_series_is_refused(tmp_path: Path, arrays: dict[str, Any], sentence: str) -> None:
    np.savez(tmp_path / "a.npz", **{"labels": np.array([0, 0, 1, 1]), **arrays})
    with pytest.raises(DataError, match=sentence):
        load(tmp_path / "a.npz", source="series")
