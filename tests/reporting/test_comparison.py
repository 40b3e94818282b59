from __future__ import annotations

import csv
import io
import statistics
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import ttest_rel

from fcil.reporting.compare.cells import cases_of_methods
from fcil.reporting.compare.runner import Grid
from fcil.reporting.compare.tables import (
    Comparison,
    Spread,
    compare,
    curves,
    processors_sentence,
    published_markdown,
    table_csv,
    table_latex,
)
from fcil.reporting.compare.tables import table_markdown as markdown_of
from fcil.reporting.published import published_row
from fcil.reporting.significance import holm, paired_interval, paired_p_value


def summary(*accuracy: float, forgetting: float | None = 5.0) -> dict[str, Any]:
    seen = [10 * (task + 1) for task in range(len(accuracy))]
    average = sum(accuracy) / len(accuracy)
    return {"accuracy": list(accuracy), "classes_seen": seen, "average": average, "forgetting": forgetting}


RUNS = {
    "ic_arl": {1: summary(80.0, 40.0), 2: summary(70.0, 30.0), 3: summary(75.0, 20.0)},
    "glfc": {1: summary(82.0, 60.0), 2: summary(78.0, 50.0), 3: summary(80.0, 52.0)},
    "failed": {},
    "once": {2: summary(10.0, 10.0)},
}


@pytest.fixture
def found() -> Comparison:
    return compare(RUNS, "glfc")


def test_rows_are_means_over_seeds_with_their_deviation(found: Comparison) -> None:
    assert [row.label for row in found.rows] == ["ic_arl", "glfc", "once"]
    assert found.classes == (10, 20)
    first = found.rows[0]
    assert [spread.mean for spread in first.accuracy] == [75.0, 30.0]
    assert first.average.mean == pytest.approx(52.5)
    assert first.average.deviation == pytest.approx(statistics.stdev([60, 50, 47.5]))
    assert first.seeds == (1, 2, 3)


def test_the_difference_and_its_test_are_paired_by_seed(found: Comparison) -> None:
    first, ours, once = found.rows
    assert first.difference == pytest.approx(statistics.mean([71 - 60, 64 - 50, 66 - 47.5]))
    assert first.p_value == pytest.approx(ttest_rel([71, 64, 66], [60, 50, 47.5]).pvalue)
    assert (ours.difference, ours.p_value) == (None, None)
    assert once.difference == pytest.approx(64 - 10)  # the seed that both have
    assert once.p_value is None


def test_the_forgetting_of_one_task_is_not_defined() -> None:
    found = compare({"glfc": {1: summary(80.0, forgetting=None), 2: summary(70.0, forgetting=None)}})
    assert found.rows[0].forgetting is None
    assert markdown_of(found).splitlines()[-1].endswith("| - |")
    assert next(csv.DictReader(io.StringIO(table_csv(found))))["forgetting"] == ""


def test_without_a_name_the_first_row_is_ours() -> None:
    assert compare(RUNS).ours == "ic_arl"
    with pytest.raises(ValueError, match="no finished run"):
        compare({"glfc": {}})


def test_differences_that_are_all_alike_have_no_p_value() -> None:
    assert paired_p_value([2.0, 2.0, 2.0]) is None
    assert paired_p_value([2.0]) is None
    assert paired_p_value([50.1 - 50.0, 60.1 - 60.0, 70.1 - 70.0]) is None  # equal but for their last bits


def test_p_values_are_corrected_for_all_rows_of_the_table() -> None:
    worse = {1: summary(60.0, 30.0), 2: summary(70.0, 30.0), 3: summary(65.0, 20.0)}
    found = compare({**RUNS, "worse": worse}, "glfc")
    alone = [ttest_rel([71, 64, 66], [60, 50, 47.5]).pvalue, ttest_rel([71, 64, 66], [45, 50, 42.5]).pvalue]
    by_label = {row.label: row.p_value for row in found.rows}
    assert alone[0] < alone[1] < 2 * alone[0]
    assert by_label["ic_arl"] == by_label["worse"] == pytest.approx(2 * alone[0])
    assert by_label["glfc"] is by_label["once"] is None  # neither is a test, so neither counts


def test_holm_rises_with_the_rank_and_ends_at_one() -> None:
    assert holm([0.02, 0.01, 0.6, 0.7, None]) == pytest.approx([0.06, 0.04, 1.0, 1.0, None])
    assert holm([]) == []


def test_an_interval_is_that_of_the_t_distribution() -> None:
    differences = [11.0, 14.0, 18.5, 12.0]
    expected = ttest_rel(differences, [0.0] * 4).confidence_interval(0.95)
    assert paired_interval(differences) == pytest.approx(tuple(expected), abs=1e-3)
    assert paired_interval([1.0]) is None
    assert paired_interval([2.0, 2.0]) == (2.0, 2.0)


def test_a_bound_that_is_passed_is_called_a_reference() -> None:
    bound, other = {1: {**summary(50.0), "method": "joint"}}, {1: summary(50.1), 2: summary(10.0)}
    assert markdown_of(compare({"joint": bound, "mine": other})).splitlines()[2].startswith("| joint (reference) (1 of")
    other[1] = summary(49.9)
    assert not compare({"joint": bound, "mine": other}).rows[0].is_passed
    assert not compare({"joint": bound, "apart": {2: summary(90.0)}}).rows[0].is_passed  # no seed in common


def test_a_table_names_its_processors_and_the_rows_that_mix_them() -> None:
    runs = {"a": {1: summary(50.0)}, "b": {1: summary(50.0), 2: summary(50.0)}}
    assert processors_sentence(compare(runs)) == ""
    same = compare(runs, processors={"a": {1: "x"}, "b": {1: "x", 2: "x"}})
    assert processors_sentence(same) == "All runs on x."
    mixed = compare(runs, processors={"a": {1: "x"}, "b": {1: "x", 2: "y"}})
    assert processors_sentence(mixed).startswith("Runs on x: a; on x and y, mixed within the row: b. Equal seeds")


def test_a_spread_of_one_seed_has_no_deviation() -> None:
    assert str(Spread.of([3.14])) == "3.1"
    assert str(Spread.of([3.0, 4.0])) == "3.5 ±0.7"


def test_the_markdown_table_has_a_column_for_each_number_of_classes(found: Comparison) -> None:
    lines = markdown_of(found).splitlines()
    assert lines[0] == "| method | 10 | 20 | Avg. | glfc minus this | p (Holm) | forgetting |"
    assert lines[2].startswith("| ic_arl | 75.0 | 30.0 | 52.5 ±6.6 | +14.5 | 0.0")
    assert lines[3].startswith("| glfc | 80.0 | 54.0 | 67.0 ±3.6 |  |  | 5.0 |")


def test_a_shorter_markdown_table_has_the_named_columns_in_their_order(found: Comparison) -> None:
    lines = markdown_of(found, ["method", "Avg.", "20"]).splitlines()
    assert lines[:2] == ["| method | Avg. | 20 |", "|---|---|---|"]
    assert lines[3] == "| glfc | 67.0 ±3.6 | 54.0 |"


def test_the_latex_table_compiles_in_the_head(found: Comparison) -> None:
    text = table_latex(found)
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 4
    assert {row.count("&") for row in rows} == {5}
    assert r"ic\_arl" in text
    assert r"\textbf{67.0 $\pm$ 3.6}" in text


def test_the_csv_table_reads_back(found: Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(table_csv(found))))
    assert [row["method"] for row in rows] == ["ic_arl", "glfc", "once"]
    assert float(rows[0]["classes_20"]) == 30.0
    assert float(rows[0]["classes_20_deviation"]) == 10.0
    assert rows[2]["average_deviation"] == ""
    assert float(rows[0]["difference_to_glfc"]) == 14.5


def test_pictures_are_the_same_bytes_for_the_same_figures(found: Comparison) -> None:
    assert curves(found, "png").startswith(b"\x89PNG")
    assert b"<svg" in curves(found, "svg")
    assert curves(found, "svg") == curves(found, "svg")


def test_the_paper_s_rows_stand_below_ours_where_the_experiment_is_theirs() -> None:
    paper = published_row("cifar100", 10, "glfc")
    assert paper is not None
    ours = summary(*[50.0] * 10)
    found = compare({"glfc": {1: ours}})
    lines = published_markdown(found, {"glfc": paper}).splitlines()
    assert lines[0] == "## As printed in the paper"
    assert lines[4].startswith(f"| glfc | {paper.accuracy[0]:.1f} |")
    assert lines[4].endswith(f"| {paper.average:.1f} | 50.0 |")
    assert published_markdown(found, {"icarl": paper}) == ""
    assert published_markdown(found, {"glfc": paper}, ["train.epochs (20 there, 1 here)"]).endswith(
        "\n\nNot as published: train.epochs (20 there, 1 here).\n\n"
    )
    fewer = compare({"glfc": {1: {**ours, "classes_seen": list(range(10))}}})
    assert published_markdown(fewer, {"glfc": paper}) == ""


@pytest.mark.parametrize(
    ("preset", "settings", "memory", "reduced"),
    [
        ("cifar100-t10", [], 2000, False),
        ("cifar100-t10", ["scenario.memory=500"], 500, False),
        ("tinyimagenet-t10", ["data.path=somewhere"], 2000, False),
        ("cifar100-t10", ["data.samples_per_class=60"], 2000, True),
        ("digits", [], None, False),
    ],
)
def test_a_grid_knows_which_of_its_cases_the_paper_has(
    preset: str, settings: list[str], memory: int | None, reduced: bool
) -> None:
    grid = Grid(preset, cases_of_methods(["glfc", "finetune"]), [2021], Path("unused"), settings)
    rows, differing = grid.published()
    assert {label: row.memory for label, row in rows.items()} == ({"glfc": memory} if memory else {})
    assert [text.partition(" ")[0] for text in differing] == [key for key in ["data.samples_per_class"] if reduced]


def test_many_rows_with_long_labels_leave_room_for_the_curves() -> None:
    found = compare({f"{'method' * 10}-{place}": {1: summary(80.0, 60.0)} for place in range(60)})
    assert curves(found, "png").startswith(b"\x89PNG")  # a layout without room would warn, which is an error here


def test_rows_with_other_tasks_stand_in_columns_of_their_own() -> None:
    long, short = summary(80.0, 60.0, 40.0), {**summary(70.0, 50.0), "classes_seen": [15, 30]}
    found = compare({"three": {1: long}, "two": {1: short}})
    lines = markdown_of(found).splitlines()
    assert lines[0].startswith("| method | 10 | 15 | 20 | 30 | Avg. |")
    assert lines[2].startswith("| three | 80.0 |  | 60.0 | 40.0 | 60.0 |")
    assert lines[3].startswith("| two |  | 70.0 |  | 50.0 | 60.0 |")
    assert [row["classes_15"] for row in csv.DictReader(io.StringIO(table_csv(found)))] == ["", "70.0"]
    assert curves(found, "svg")


def test_a_row_with_fewer_seeds_says_so(found: Comparison) -> None:
    assert "| once (1 of 3 seeds) |" in markdown_of(found)
    assert "| glfc |" in markdown_of(found)


def test_labels_and_figures_are_escaped_in_latex() -> None:
    sure = {seed: summary(90.0 + seed / 1000) for seed in (1, 2, 3)}
    table = table_latex(compare({"a_b={c=1}": sure, "other": {seed: summary(10.0) for seed in (1, 2, 3)}}))
    assert r"a\_b=\{c=1\}" in table
    assert "$<$ 0.001" in table
