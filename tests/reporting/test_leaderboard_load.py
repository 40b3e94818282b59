"""The leaderboard from the disk: where the kept results are found, what may be added, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.command import fcil
from support.kept import keep
from support.pages import SMALL, small_run
from support.plugins import fresh_registry, install
from support.served import idle, served

from fcil.core.errors import ConfigError
from fcil.experiment.presets import read_document
from fcil.experiment.result_file import read_kept, write_kept
from fcil.reporting.leaderboard import load, shipped
from fcil.reporting.leaderboard.load import experiments_in, published_averages
from fcil.reporting.leaderboard.rank import Leaderboard
from fcil.reporting.load_runs import run_facts

ROOT = Path(__file__).parents[2]
METHOD = """
from fcil.methods.base import Method, register_method
from fcil.methods.bic import BiCConfig, build

class Settings(BiCConfig):
    pace: float = 1.0

    def sends(self):
        return {"bias": "two numbers"}

register_method(Method("mine", "a method of another package", Settings, build))
"""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    keep(folder / "digits", "digits", "glfc", {1: 90.0, 2: 92.0})
    keep(folder / "digits", "digits", "icarl", {1: 80.0, 2: 84.0})
    keep(folder / "digits", "digits", "podnet", {1: 70.0, 2: 74.0})  # another head than the preset's
    keep(folder / "digits", "digits", "glfc-wo-prs", {1: 91.0, 2: 92.0})
    keep(folder / "digits", "digits", "joint", {1: 99.0, 2: 99.0})
    keep(folder / "cifar100-lite", "cifar100-lite", "glfc", {1: 25.0})
    (folder / "published").mkdir()
    (folder / "published" / "other-1.json").write_text("{}")
    return folder


def ranks(board: Leaderboard) -> dict[str, int | None]:
    return {f"{row.label} {row.origin}": row.cells["digits"].rank for row in board.rows if "digits" in row.cells}


def test_the_kept_runs_of_presets_make_the_table(results: Path) -> None:
    board = load.load_leaderboard(results)
    assert board.experiments == ("digits", "cifar100-lite")
    assert board.machines == ("an abacus, torch 0",)
    assert ranks(board) == {
        "glfc kept": 1,
        "icarl kept": 2,
        "podnet kept": 3,
        "glfc-wo-prs kept": None,
        "joint kept": None,
    }
    (glfc,) = (row for row in board.rows if row.label == "glfc")
    assert glfc.cells["digits"].places[2] == "results/digits/glfc-2.json"
    assert [row.sends for row in board.rows if row.label == "icarl"] == [()]
    assert "prototype" in glfc.sends[0]


def test_a_kept_run_of_another_experiment_is_refused(results: Path) -> None:
    (path,) = keep(results / "digits", "digits", "bic", {1: 80.0}, ["scenario.memory=7"])
    with pytest.raises(ConfigError, match=rf"{path} is not a run of digits: scenario\.memory \(7 there, \d+ here\)"):
        load.load_leaderboard(results)


def test_a_kept_run_with_other_settings_of_its_method_is_a_variant(results: Path) -> None:
    keep(results / "digits", "digits", "icarl", {1: 85.0}, ["method.predict=nme"], name="nme")
    board = load.load_leaderboard(results)
    variant = next(row for row in board.rows if row.label == "icarl predict=nme")
    assert not variant.contends
    assert variant.sends == ("for each class: the mean feature and the number of samples",)


def test_runs_of_any_method_and_seed_are_added_and_ranked(results: Path, tmp_path: Path) -> None:
    install(tmp_path, "my-package", "[fcil.methods]\nmine = my_method\n", my_method=METHOD)
    with fresh_registry(tmp_path):
        keep(tmp_path / "own", "digits", "mine", {1: 85.0, 2: 85.0, 7: 85.0})
        keep(tmp_path / "own", "digits", "mine", {1: 95.0, 2: 95.0}, ["method.pace=2.0"], name="pace=2")
        alone = keep(tmp_path / "other", "digits", "glfc", {1: 60.0}, ["method.edition=paper"])
        board = load.load_leaderboard(results, [tmp_path / "own", *alone])
    assert ranks(board) == {
        "mine pace=2.0 added": 1,
        "glfc kept": 1,
        "mine added": 2,
        "icarl kept": 2,
        "podnet kept": 3,
        "glfc-wo-prs kept": None,
        "joint kept": None,
        "glfc (paper) added": None,  # one of the two seeds is missing
    }
    assert {row.sends for row in board.rows if row.label.startswith("mine")} == {("two numbers",)}


@pytest.mark.parametrize("preset", ["digits", "tiny-lite"])
def test_a_run_of_no_experiment_in_the_table_is_refused_with_the_nearest_one(
    results: Path, tmp_path: Path, preset: str
) -> None:
    (path,) = keep(tmp_path / "own", preset, "bic", {1: 80.0}, ["scenario.memory=7"])
    ended = fcil("leaderboard", "--results", results, "--add", tmp_path / "own")
    assert ended.returncode == 2
    assert ended.stdout == ""
    beginning = (
        f"error: {path} is a run of none of the experiments in the table (digits, cifar100-lite); only method and seed "
        f"may differ. From {'digits' if preset == 'digits' else 'cifar100-lite'} it differs in "
    )
    assert ended.stderr.startswith(beginning)
    assert "(7 there, " in ended.stderr
    assert ended.stderr.count("there, ") <= load.MOST_KEYS


def test_a_method_that_is_not_installed_is_named(results: Path, tmp_path: Path) -> None:
    (path,) = keep(tmp_path / "own", "digits", "bic", {1: 80.0})
    kept = read_kept(path)
    write_kept(path, {**kept.config, "method": {**kept.config["method"], "name": "strange"}}, kept.summary, {})
    ended = fcil("leaderboard", "--results", results, "--add", path)
    assert ended.returncode == 2
    assert (
        f"{path} cannot be put into the table: method.name: 'strange' is unknown; there are analytic, " in ended.stderr
    )


# --- directories of runs ------------------------------------------------------------------------------------------


@pytest.fixture
def small(results: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the experiment `digits` a small one, and return results of it."""
    experiment = {key: value for key, value in SMALL.items() if key != "method"}

    def read(name: str) -> dict[str, Any]:
        assert name == "digits"
        return {**experiment, "method": {"name": "glfc"}}

    monkeypatch.setattr(load, "read_document", read)
    shutil.rmtree(results)
    results.mkdir()
    return results


def test_the_directory_of_a_run_or_of_a_comparison_is_added(small: Path, tmp_path: Path) -> None:
    runs, told = tmp_path / "runs", list[str]()
    first = small_run(runs / "glfc-4")
    small_run(runs / "finetune-4", method={"name": "finetune"})
    small_run(runs / "joint-4", rounds=1, method={"name": "joint"})
    added = load.added_runs(runs, ["digits"], told.append)
    changed = "perturb_steps=2 rebuild_evaluations=10 rebuild_restarts=0"
    assert sorted(run.label for run in added) == ["finetune", f"glfc {changed}"]
    assert told == [f"{runs / 'joint-4'} is not finished and left out"]
    (alone,) = load.added_runs(first, ["digits"], told.append)
    assert alone.summary == run_facts(first).summary
    assert alone.place == first.as_posix()
    with pytest.raises(ConfigError, match=f"no finished run; continue it with: fcil resume {runs / 'joint-4'}"):
        load.added_runs(runs / "joint-4", ["digits"], told.append)
    with pytest.raises(ConfigError, match="holds no run"):
        load.added_runs(small, ["digits"], told.append)


def test_a_server_s_run_is_refused(small: Path, tmp_path: Path) -> None:
    with served(tmp_path / "server", 1) as run:
        next(run.rounds(idle()))
        run.finish()
    with pytest.raises(ConfigError, match="is a server's run, measured at its sites; the table has simulations"):
        load.added_runs(tmp_path / "server", ["digits"], lambda sentence: None)


# --- where results are --------------------------------------------------------------------------------------------


def test_columns_are_presets_with_kept_runs_in_their_order(tmp_path: Path) -> None:
    for name in ("tiny-lite", "unknown", "cifar100-t10", "digits"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "glfc-1.json").touch()
    (tmp_path / "cifar100-lite").mkdir()
    assert experiments_in(tmp_path) == ["digits", "tiny-lite", "cifar100-t10"]


def test_a_folder_without_kept_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--results {tmp_path}: found no kept runs, should have a folder for each"):
        load.load_leaderboard(tmp_path)


def test_the_table_that_ships_is_the_one_of_the_folder_it_was_written_from(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = shipped.document(load.folder_runs(results))
    monkeypatch.setattr(load, "shipped_runs", lambda: shipped.runs_of(content))
    assert load.load_leaderboard() == load.load_leaderboard(results)


def test_without_a_folder_the_kept_results_of_the_source_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m benchmarks.reproduction --check` compares the file that ships with results/."""
    monkeypatch.chdir(tmp_path)
    board = load.load_leaderboard()
    assert board.experiments == load.ORDER
    assert {"glfc", "icarl", "finetune", "joint"} <= {row.label for row in board.rows}
    runs = [run for row in board.rows for cell in row.cells.values() for run in cell.places.values()]
    assert sorted(runs) == sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "results").glob("*/*-*.json"))


def test_published_averages_stand_only_beside_the_published_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert published_averages("cifar100-t10")["glfc"] == pytest.approx(66.9, abs=0.05)
    for name in load.ORDER:
        assert published_averages(name) == {}
    keep(tmp_path / "cifar100-t10", "cifar100-t10", "glfc", {1: 60.0})
    board = load.load_leaderboard(tmp_path)
    paper = {row.label: row.cells["cifar100-t10"] for row in board.rows if row.origin == "published"}
    assert {"glfc", "icarl", "bic"} <= paper.keys()
    assert all(cell.rank is None and cell.minutes is None for cell in paper.values())
    published = read_document("cifar100-t10")
    monkeypatch.setattr(load, "read_document", lambda name: {**published, "model": {"width": 16}})
    assert published_averages("cifar100-narrow") == {}  # data, tasks and memory alone do not make it the paper's


# --- the command --------------------------------------------------------------------------------------------------


def test_the_command_prints_the_table_in_three_forms(results: Path, tmp_path: Path) -> None:
    keep(tmp_path / "own", "digits", "bic", {1: 95.0, 2: 96.0})
    arguments = ("leaderboard", "--results", results, "--add", tmp_path / "own")
    shown, marked, document = (fcil(*arguments, *form) for form in ((), ("--markdown",), ("--json",)))
    assert [ended.returncode for ended in (shown, marked, document)] == [0, 0, 0], shown.stderr
    assert "95.5 ±0.7 (2) *" in shown.stdout
    assert "Minutes per run" in shown.stdout
    assert "| bic (added) | **95.5** ±0.7 |" in marked.stdout
    methods = json.loads(document.stdout)["methods"]
    assert [(method["label"], method["origin"]) for method in methods[:2]] == [("bic", "added"), ("glfc", "kept")]


def test_the_command_refuses_two_forms_and_a_folder_without_results(results: Path, tmp_path: Path) -> None:
    both = fcil("leaderboard", "--results", results, "--json", "--markdown")
    assert (both.returncode, both.stdout) == (2, "")
    assert "--json and --markdown" in both.stderr
    none = fcil("leaderboard", "--results", tmp_path / "absent")
    assert (none.returncode, none.stdout) == (2, "")
    assert f"--results {tmp_path / 'absent'}: found no kept runs" in none.stderr
