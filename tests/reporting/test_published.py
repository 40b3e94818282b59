from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.loops import for_each

import fcil
from fcil.methods import methods
from fcil.reporting.published import PublishedRow, PublishedTable, exact_mean, published_row, published_tables

TABLES = published_tables()
ROWS = [(table, row) for table in TABLES for row in table.rows]
CLASSES = {"cifar100": 100, "imagenet-subset": 100, "tinyimagenet": 200}
COMPARED = ["icarl", "bic", "podnet", "dde", "geodl", "ssil"]
ABLATIONS = ["glfc-wo-cgc", "glfc-wo-crd", "glfc-wo-prs"]

every_row = for_each(ROWS)


def table(number: int) -> PublishedTable:
    return TABLES[number - 1]


def row(number: int, method: str) -> PublishedRow:
    return next(row for row in table(number).rows if row.method == method)


def test_there_are_nine_tables_in_the_order_of_print() -> None:
    assert [table.number for table in TABLES] == list(range(1, 10))
    assert [table.place for table in TABLES] == ["paper"] * 4 + ["supplement"] * 5


@pytest.mark.parametrize(
    ("number", "dataset", "tasks", "varies", "rows", "columns"),
    [
        (1, "cifar100", 10, "method", 10, 10),
        (2, "imagenet-subset", 10, "method", 10, 10),
        (3, "tinyimagenet", 20, "method", 10, 10),
        (4, "cifar100", 5, "memory", 4, 5),
        (5, "tinyimagenet", 20, "method", 10, 10),
        (6, "tinyimagenet", 20, "method", 10, 10),
        (7, "tinyimagenet", 10, "method", 7, 10),
        (8, "tinyimagenet", 5, "method", 7, 5),
        (9, "cifar100", 10, "memory", 4, 10),
    ],
)
def test_a_table_has_the_shape_it_is_printed_in(
    number: int, dataset: str, tasks: int, varies: str, rows: int, columns: int
) -> None:
    found = table(number)
    assert (found.dataset, found.tasks, found.varies) == (dataset, tasks, varies)
    assert (len(found.rows), len(found.classes)) == (rows, columns)


def test_no_cell_is_missing() -> None:
    assert sum(len(row.accuracy) for _, row in ROWS) == 5 * 100 + 4 * 5 + 7 * 10 + 7 * 5 + 4 * 10
    assert sum(row.printed_difference is not None for _, row in ROWS) == 5 * 9 + 2 * 6


@every_row
def test_columns_are_the_classes_after_each_task(table: PublishedTable, row: PublishedRow) -> None:
    step = CLASSES[table.dataset] // table.tasks
    first = step * 11 if table.number == 6 else step
    assert row.classes == table.classes == tuple(range(first, first + step * len(table.classes), step))
    assert len(row.accuracy) == len(row.classes)


@every_row
def test_a_method_is_one_of_the_registry(table: PublishedTable, row: PublishedRow) -> None:
    assert row.method in methods()


@pytest.mark.parametrize("number", [1, 2, 3, 5, 6])
def test_the_large_tables_hold_every_method_and_every_ablation(number: int) -> None:
    assert [row.method for row in table(number).rows] == [*COMPARED, *ABLATIONS, "glfc"]


@pytest.mark.parametrize("number", [7, 8])
def test_the_small_tables_hold_every_method(number: int) -> None:
    assert [row.method for row in table(number).rows] == [*COMPARED, "glfc"]


@pytest.mark.parametrize("number", [4, 9])
def test_the_tables_of_memories_hold_four_sizes(number: int) -> None:
    assert [(row.method, row.memory) for row in table(number).rows] == [("glfc", m) for m in (500, 1000, 1500, 2000)]


@every_row
def test_every_cell_is_a_mean_of_three_whole_percents(table: PublishedTable, row: PublishedRow) -> None:
    assert all(cell == round(round(3 * cell) / 3, 1) for cell in row.accuracy)


@every_row
def test_an_average_is_the_mean_of_its_cells_exactly_where_no_slip_is_marked(
    table: PublishedTable, row: PublishedRow
) -> None:
    assert row.printed_average is not None
    assert (row.printed_average == round(row.average, 1)) == (row.slip is None)
    if row.slip is None:
        assert abs(row.printed_average - sum(row.accuracy) / len(row.accuracy)) < 0.1


@every_row
def test_a_difference_is_that_of_the_printed_averages(table: PublishedTable, row: PublishedRow) -> None:
    if row.printed_difference is None:
        assert row.method == "glfc"
        return
    best = next(other for other in table.rows if other.method == "glfc")
    assert best.printed_average is not None
    assert row.printed_average is not None
    assert row.printed_difference == round(best.printed_average - row.printed_average, 1)


def test_the_slips_are_these() -> None:
    marked = {(table.number, row.method): row for table, row in ROWS if row.slip}
    assert {key: (row.printed_average, round(row.average, 2)) for key, row in marked.items()} == {
        (1, "glfc-wo-cgc"): (60.1, 64.73),
        (2, "geodl"): (50.0, 49.9),
        (3, "glfc-wo-prs"): (50.3, 50.37),
        (5, "glfc-wo-prs"): (50.3, 50.37),
    }


@pytest.mark.parametrize(
    ("number", "method", "classes", "accuracy"),
    [
        (1, "icarl", 20, 55.0),
        (1, "ssil", 50, 44.7),
        (1, "glfc-wo-crd", 90, 51.0),
        (1, "glfc", 60, 66.3),
        (2, "dde", 20, 57.7),
        (2, "glfc-wo-crd", 40, 45.0),
        (2, "glfc", 100, 42.7),
        (3, "dde", 30, 53.3),
        (3, "glfc", 10, 68.7),
        (6, "podnet", 110, 37.0),
        (6, "glfc", 200, 31.7),
        (7, "bic", 40, 52.7),
        (7, "geodl", 200, 30.0),
        (8, "ssil", 80, 42.3),
        (8, "glfc", 200, 40.3),
    ],
)
def test_cells_checked_by_eye(number: int, method: str, classes: int, accuracy: float) -> None:
    found = row(number, method)
    assert found.accuracy[found.classes.index(classes)] == accuracy


@pytest.mark.parametrize(
    ("tasks", "memory", "last", "average"),
    [
        (5, 500, 38.3, 50.9),
        (5, 1000, 42.3, 54.5),
        (5, 1500, 44.0, 56.1),
        (5, 2000, 45.7, 58.1),
        (10, 500, 39.3, 55.6),
        (10, 1000, 47.7, 62.0),
        (10, 1500, 48.7, 65.2),
        (10, 2000, 50.0, 66.9),
    ],
)
def test_memories_checked_by_eye(tasks: int, memory: int, last: float, average: float) -> None:
    found = published_row("cifar100", tasks, "glfc", memory)
    assert found is not None
    assert (found.last, found.printed_average) == (last, average)


def test_what_is_printed_twice_is_the_same_both_times() -> None:
    assert table(3).rows == table(5).rows
    assert row(1, "glfc").accuracy == table(9).rows[-1].accuracy


@pytest.mark.parametrize("method", [*COMPARED, *ABLATIONS, "glfc"])
def test_the_halves_of_twenty_tasks_are_joined(method: str) -> None:
    found = published_row("tinyimagenet", 20, method)
    assert found is not None
    assert found.classes == tuple(range(10, 201, 10))
    assert found.accuracy == row(3, method).accuracy + row(6, method).accuracy
    assert found.average == pytest.approx((row(3, method).average + row(6, method).average) / 2)
    assert (found.printed_average, found.printed_difference, found.slip) == (None, None, None)


@pytest.mark.parametrize(
    ("dataset", "tasks", "method", "memory"),
    [
        ("cifar100", 20, "glfc", 2000),
        ("cifar100", 5, "icarl", 2000),
        ("cifar100", 10, "glfc", 700),
        ("digits", 5, "glfc", 2000),
        ("cifar100", 10, "ewc", 2000),
    ],
)
def test_what_is_not_printed_is_none(dataset: str, tasks: int, method: str, memory: int) -> None:
    assert published_row(dataset, tasks, method, memory) is None


def test_the_exact_mean_undoes_the_rounding_of_the_cells() -> None:
    assert exact_mean([50.3, 50.7, 50.0]) == pytest.approx(151 / 3)
    assert exact_mean([66.7] * 9) == pytest.approx(200 / 3)


def test_a_file_holds_no_key_that_the_loader_leaves_out() -> None:
    head = {"table", "place", "title", "dataset", "tasks", "varies", "memory", "classes", "rows"}
    cells = {"method", "printed_label", "memory", "accuracy", "printed_average", "printed_difference", "slip"}
    files = sorted((Path(fcil.__file__).parent / "reporting" / "published").glob("*.json"))
    assert len(files) == 9
    for file in files:
        document = json.loads(file.read_text("utf-8"))
        assert document.keys() <= head
        assert ("memory" in document) == (document["varies"] == "method")
        assert all(row.keys() <= cells for row in document["rows"])
