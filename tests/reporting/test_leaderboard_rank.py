"""The leaderboard as a pure function of runs: averages, ranks, what is clear, cost, and how it is written."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from support.kept import figures

from fcil.core.errors import ConfigError
from fcil.reporting.leaderboard.format import TERMINAL, board_document, board_markdown, tables_of
from fcil.reporting.leaderboard.rank import Leaderboard, LeaderboardRun, MethodRow, leaderboard

Seeds = dict[int, float]


def runs_of(
    label: str,
    averages: Seeds,
    origin: Literal["kept", "added"] = "kept",
    experiment: str = "digits",
    figures_of: dict[str, Any] | None = None,
    **fields: Any,
) -> list[LeaderboardRun]:
    return [
        LeaderboardRun(
            experiment,
            label,
            origin,
            figures(label, seed, average, **(figures_of or {})),
            f"results/{experiment}/{label}-{seed}.json",
            **fields,
        )
        for seed, average in averages.items()
    ]


def board(*runs: list[LeaderboardRun], experiments: tuple[str, ...] = ("digits",)) -> Leaderboard:
    return leaderboard(experiments, [run for group in runs for run in group])


def row(found: Leaderboard, label: str, origin: str = "kept") -> MethodRow:
    (wanted,) = (row for row in found.rows if (row.label, row.origin) == (label, origin))
    return wanted


def notes(found: Leaderboard) -> list[str]:
    return [sentence for table in tables_of(found, TERMINAL) for sentence in table.notes]


def ranks(found: Leaderboard, experiment: str = "digits") -> dict[str, int | None]:
    return {row.label: row.cells[experiment].rank for row in found.rows if experiment in row.cells}


def test_a_cell_has_mean_spread_seeds_and_the_cost_of_its_runs() -> None:
    first = runs_of("a", {1: 30.0, 2: 32.0}, figures_of={"seconds": 60.0, "bytes_up": 1_000, "bytes_down": 10})
    second = runs_of("a", {3: 34.0}, figures_of={"seconds": 240.0, "bytes_up": 4_000, "bytes_down": 40})
    cell = row(board(first, second), "a").cells["digits"]
    assert (cell.average.mean, cell.average.deviation) == (32.0, 2.0)
    assert cell.seeds == (1, 2, 3)
    assert (cell.minutes, cell.bytes_up, cell.bytes_down) == (1.0, 2_000, 20)
    assert cell.places[3] == "results/digits/a-3.json"


def test_ranks_follow_the_means_and_what_prints_alike_shares_a_rank() -> None:
    found = board(runs_of("a", {1: 25.04}), runs_of("b", {1: 24.96}), runs_of("c", {1: 24.94}), runs_of("d", {1: 30.0}))
    assert ranks(found) == {"d": 1, "a": 2, "b": 2, "c": 4}


def test_ranks_compare_the_seeds_that_more_than_half_of_the_methods_have() -> None:
    found = board(
        runs_of("a", {1: 20.0, 2: 20.0}),
        runs_of("b", {1: 19.0, 2: 19.0}),
        runs_of("more", {1: 10.0, 2: 10.0, 3: 90.0}),  # 36.7 over all its seeds, 10 over those compared
        runs_of("fewer", {1: 80.0}),
    )
    assert found.seeds == {"digits": (1, 2)}
    assert ranks(found) == {"a": 1, "b": 2, "more": 3, "fewer": None}
    assert row(found, "more").cells["digits"].average.mean == pytest.approx(110 / 3)
    assert row(found, "more").cells["digits"].others == 2
    assert "Not ranked on digits, for lack of a seed: fewer." in notes(found)


def test_methods_with_a_single_seed_do_not_make_that_seed_decide() -> None:
    several = [runs_of(label, {1: 20.0 + place, 2: 20.0}) for place, label in enumerate("ab")]
    once = [runs_of(label, {1: 90.0}) for label in "cdef"]
    found = board(*several, *once)
    assert found.seeds == {"digits": (1, 2)}
    assert ranks(found) == {"b": 1, "a": 2, "c": None, "d": None, "e": None, "f": None}
    assert "Not ranked on digits, for lack of a seed: c, d, e, f." in notes(found)


def test_without_common_seeds_nothing_is_ranked() -> None:
    found = board(runs_of("a", {1: 20.0}), runs_of("b", {2: 10.0}))
    assert found.seeds == {"digits": ()}
    assert ranks(found) == {"a": None, "b": None}
    assert [row.mean_rank for row in found.rows] == [None, None]


def test_the_first_leads_with_those_shown_to_be_level_with_it() -> None:
    found = board(
        runs_of("first", {1: 30.0, 2: 32.0, 3: 34.0}),
        runs_of("level", {1: 30.1, 2: 31.6, 3: 33.6}),  # differences -0.1, 0.4, 0.4: from -0.5 to 0.95
        runs_of("wide", {1: 33.0, 2: 30.0, 3: 31.0}),  # 2/3 of a point below, from -7.3 to 8.7: nothing is shown
        runs_of("below", {1: 29.0, 2: 31.2, 3: 33.1}),  # differences 1.0, 0.8, 0.9: surely below
        runs_of("always", {1: 29.0, 2: 31.0, 3: 33.0}),  # one point below with every seed
        runs_of("equal", {1: 30.0, 2: 32.0, 3: 34.0}),
    )
    leads = {row.label: row.cells["digits"].leads for row in found.rows}
    assert leads == {"first": True, "level": True, "wide": False, "below": False, "always": False, "equal": True}


def test_one_seed_is_enough_for_a_rank_and_not_for_a_spread() -> None:
    found = board(runs_of("a", {1: 30.0}), runs_of("b", {1: 29.0}))
    assert ranks(found) == {"a": 1, "b": 2}
    assert str(row(found, "a").cells["digits"].average) == "30.0"
    assert [row.cells["digits"].leads for row in found.rows] == [True, False]


def test_bounds_and_variants_have_no_rank_and_take_none_from_others() -> None:
    found = board(
        runs_of("bound", {1: 99.0}, contends=False),
        runs_of("variant", {1: 50.0}, contends=False, kin="low"),
        runs_of("low", {1: 10.0}),
        runs_of("high", {1: 20.0}),
    )
    assert ranks(found) == {"high": 1, "low": 2, "variant": None, "bound": None}
    assert [row.label for row in found.rows] == ["high", "low", "variant", "bound"]  # a variant below its method


def test_an_added_row_is_ranked_among_the_kept_ones_which_stay_as_they_are() -> None:
    kept = [runs_of("a", {1: 30.0, 2: 31.0}), runs_of("b", {1: 20.0, 2: 21.0}), runs_of("c", {1: 10.0, 2: 10.5})]
    before = board(*kept)
    found = board(
        *kept,
        runs_of("mine", {1: 25.0, 2: 25.0}, "added"),
        runs_of("a", {1: 40.0, 2: 41.0}, "added"),
        runs_of("late", {1: 26.0}, "added"),
    )
    assert [row for row in found.rows if row.origin == "kept"] == list(before.rows)
    assert [f"{row.label} {row.origin}" for row in found.rows] == [
        *("a added", "a kept", "mine added", "b kept", "c kept", "late added"),
    ]
    cell = row(found, "mine", "added").cells["digits"]
    assert (cell.rank, cell.others, cell.below) == (2, 3, 2)
    assert row(found, "a", "added").cells["digits"].rank == 1
    assert row(found, "late", "added").cells["digits"].rank is None


def test_the_mean_rank_is_over_the_experiments_on_which_most_methods_have_a_rank() -> None:
    found = board(
        runs_of("a", {1: 30.0}),
        runs_of("b", {1: 20.0}),
        runs_of("c", {1: 10.0}),
        runs_of("b", {1: 5.0}, experiment="tiny-lite"),
        runs_of("c", {1: 6.0}, experiment="tiny-lite"),
        runs_of("c", {1: 50.0}, experiment="cifar100-lite"),  # one of three methods: no part of the mean
        experiments=("digits", "tiny-lite", "cifar100-lite"),
    )
    assert {row.label: row.mean_rank for row in found.rows} == {"a": 1.0, "b": 2.0, "c": 2.0}
    assert [row.label for row in found.rows] == ["a", "b", "c"]
    assert row(found, "c").cells["cifar100-lite"].rank == 1
    assert "tiny-lite" not in row(found, "a").cells


def test_two_runs_for_one_place_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"a-1.json and .*a-1.json are both a on digits with seed 1; name one"):
        board(runs_of("a", {1: 30.0}), runs_of("a", {1: 31.0}))


def test_markdown_has_four_small_tables_and_leaves_a_cell_without_runs_empty() -> None:
    found = board(
        runs_of("a", {2: 30.0, 1: 32.0}, sends=("one vector", "two numbers")),
        runs_of("b", {1: 20.0, 2: 20.0}, experiment="tiny-lite"),
        runs_of("c", {1: 10.0, 2: 10.0}, experiment="tiny-lite"),
        experiments=("digits", "tiny-lite"),
    )
    lines = board_markdown(found).splitlines()
    assert lines[0] == "| method | digits | tiny-lite | mean rank |"
    assert lines[2:5] == [
        "| b |  | **20.0** ±0.0 | 1.0 |",
        "| c |  | 10.0 ±0.0 | 2.0 |",
        "| a | **31.0** ±1.4 |  |  |",  # digits ranks one of three methods
    ]
    assert [line for line in lines if line.startswith("#")] == [
        *("## Minutes per run", "## Megabytes per run", "## Uploads"),
    ]
    assert "| a | 1.0 |  |" in lines
    assert "| a | 1.0+2.0 |  |" in lines
    assert lines.index("| a | one vector; two numbers |") + 1 == lines.index("| b, c | nothing |")


def test_a_published_row_has_an_average_alone_and_stands_below_its_method() -> None:
    runs = [*runs_of("glfc", {1: 60.0}), *runs_of("icarl", {1: 61.0})]
    found = leaderboard(["digits"], runs, {"digits": {"glfc": 66.94}})
    assert [(row.label, row.origin) for row in found.rows] == [
        *(("icarl", "kept"), ("glfc", "kept"), ("glfc", "published")),
    ]
    assert board_markdown(found).splitlines()[4] == "| glfc, as published | 66.9 |  |"
    assert ranks(found) == {"icarl": 1, "glfc": None}  # the last of that label, the published one, has none


def test_failures_of_clients_and_machines_are_told() -> None:
    failure = {"client": 1, "round": 0, "stage": "fit", "reason": "no"}
    found = board(runs_of("a", {1: 30.0}, figures_of={"failures": [failure]}, machine="an abacus, torch 0"))
    assert "a on digits: failures of clients in its runs: 1." in notes(found)
    assert "Kept runs: an abacus, torch 0." in notes(found)


def test_cells_that_mix_machines_are_named_and_a_passed_bound_is_a_reference() -> None:
    found = board(
        *(runs_of("a", {seed: 30.0}, machine=machine) for seed, machine in ((1, "x"), (2, "y"))),
        runs_of("bound", {1: 29.0, 2: 29.0}, contends=False, machine="x"),
    )
    told = notes(found)
    assert any(line.startswith("Cells that mix them: a on digits. Equal seeds") for line in told)
    assert "bound is a reference and no bound where a method passes it: digits." in told
    assert board_markdown(found).splitlines()[3].startswith("| bound (reference) | 29.0")
    unpassed = board(runs_of("a", {1: 30.0}), runs_of("bound", {1: 31.0}, contends=False))
    assert unpassed.passed(row(unpassed, "bound")) == []


def test_the_document_for_scripts_has_full_precision() -> None:
    runs = runs_of("a", {1: 30.12345, 2: 30.0}, sends=("one vector",)), runs_of("b", {1: 1.0, 2: 2.0})
    found = board(*runs, runs_of("c", {1: 1.0}))
    document = json.loads(json.dumps(board_document(found), allow_nan=False))
    assert document["experiments"] == [{"name": "digits", "ranked_seeds": [1, 2]}]
    first, second, third = document["methods"]
    assert (first["label"], first["origin"], first["sends"]) == ("a", "kept", ["one vector"])
    assert first["results"]["digits"]["averages"] == {"1": 30.12345, "2": 30.0}
    assert first["results"]["digits"]["runs"]["2"] == "results/digits/a-2.json"
    assert (second["results"]["digits"]["rank"], second["results"]["digits"]["ranked_methods"]) == (2, 2)
    assert (third["results"]["digits"]["rank"], third["results"]["digits"]["deviation"]) == (None, None)
