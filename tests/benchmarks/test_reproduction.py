"""The pages that report our runs say what the kept figures say."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
from support.loops import for_each

from fcil.experiment.config import Config, differing_settings, load_config
from fcil.experiment.result_file import read_kept
from fcil.methods import methods
from fcil.reporting.leaderboard.shipped import shipped_runs

ROOT = Path(__file__).parents[2]
KEPT = sorted((ROOT / "results").glob("*/*-*.json"))
CHOICES = sorted((ROOT / "results").glob("*/optimisers.json"))
PRETRAINED = sorted((ROOT / "results" / "pretrained").glob("*/*-*.json"))
PRETRAINED_SWEPT = sorted((ROOT / "results" / "pretrained").glob("*/*/*-*.json"))
SWEPT = sorted({*(ROOT / "results").glob("*/*/*-*.json")}.difference(PRETRAINED))
CHANGED = sorted((ROOT / "results").glob("*/with/*/*-*.json"))

if not (ROOT / "benchmarks").is_dir():
    pytest.skip("benchmarks come with the source, not with the wheel", allow_module_level=True)


def test_the_pages_are_what_the_figures_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["reproduction", "--check"])
    with pytest.raises(SystemExit) as leaving:
        runpy.run_path(str(ROOT / "benchmarks" / "reproduction.py"), run_name="__main__")
    assert leaving.value.code == 0, capsys.readouterr().out


def test_ranks_beside_the_paper_s_compare_the_same_seeds() -> None:
    reproduction = pytest.importorskip("benchmarks.reproduction")
    averages = {
        "glfc": {1: 30.0, 2: 24.0, 3: 0.0},
        "icarl": {1: 28.0, 2: 20.0},
        "bic": {1: 10.0, 2: 40.0},
        "dde": {1: 90.0},
    }
    runs = {method: {seed: {"average": value} for seed, value in found.items()} for method, found in averages.items()}
    table = reproduction.compared_with_paper(runs, "cifar100", 10)
    assert "our average, seeds 1, 2 " in table
    assert "66.9" not in table, "the paper's figure for GLFC is of another experiment"
    lines = [line.split("|") for line in table.splitlines() if line.startswith("|")]
    rows = {line[1].strip(): [cell.strip() for cell in line[2:4]] for line in lines}
    assert rows["glfc"] == ["27.0", "1"], "its third seed, which others lack, does not count"
    assert rows["bic"] == ["25.0", "2"]
    assert rows["icarl"] == ["24.0", "3"]
    assert rows["dde"] == ["90.0", "one seed"]


def test_the_page_opens_with_one_small_table_of_methods_and_experiments() -> None:
    page = (ROOT / "REPRODUCTION.md").read_text("utf-8")
    title, lead, table, *_ = page.split("\n\n")
    assert title == "# Reproduction"
    assert len(lead.split()) <= 50
    head, _, *rows = table.splitlines()
    assert head.startswith("| method | digits | ")
    assert head.endswith(" | mean rank |")
    named = {row.split(" | ")[0].removeprefix("| ").removesuffix(" (reference)") for row in rows}
    assert {path.stem.rsplit("-", 1)[0] for path in KEPT} == named
    for cell in (cell for row in rows for cell in row.strip("| ").split(" | ")[1:]):
        assert re.fullmatch(r"|(\*\*)?\d+\.\d(\*\*)?( ±\d+\.\d)?", cell.strip()), cell
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert headings[:3] == ["Minutes per run", "Megabytes per run", "Uploads"]
    assert len(page.split()) <= 4500


def test_the_page_of_an_experiment_links_each_of_its_runs_once() -> None:
    pages = sorted({path.parent / "README.md" for path in KEPT})
    linked = [
        page.parent / name for page in pages for name in re.findall(r"\]\(([^)/]+\.json)\)", page.read_text("utf-8"))
    ]
    assert sorted(linked) == KEPT
    assert ".json)" not in (ROOT / "REPRODUCTION.md").read_text("utf-8")


@for_each([*KEPT, *PRETRAINED])
def test_a_kept_run_is_one_that_the_present_presets_describe(path: Path) -> None:
    method, seed = path.stem.rsplit("-", 1)
    assert method in methods()
    check(path, load_config(path.parent.name, [f"method.name={method}", f"seed={seed}"]))


@for_each([*SWEPT, *PRETRAINED_SWEPT])
def test_a_kept_run_of_a_sweep_has_the_value_in_its_name(path: Path) -> None:
    key, preset = path.parent.name, path.parent.parent.name
    label, seed = path.stem.rsplit("-", 1)
    name, value = label.split("=")
    *method, name = name.rsplit("-", 1)
    assert key.endswith(f".{name}")
    check(path, load_config(preset, [f"{key}={value}", f"seed={seed}", *(f"method.name={one}" for one in method)]))


@for_each(CHANGED)
def test_a_kept_run_with_other_settings_has_those_that_its_folder_names(path: Path) -> None:
    method, seed = path.stem.rsplit("-", 1)
    settings = path.parent.name.split(",")
    check(path, load_config(path.parents[2].name, [*settings, f"method.name={method}", f"seed={seed}"]))


def test_a_sweep_s_run_with_the_preset_s_own_value_is_the_preset_s_run() -> None:
    same = 0
    for path in SWEPT:
        run = json.loads(path.read_text("utf-8"))
        method, seed = run["summary"]["method"], run["summary"]["seed"]
        twin = path.parent.parent / f"{method}-{seed}.json"
        kept = json.loads(twin.read_text("utf-8")) if twin.is_file() else None
        if kept is not None and differing_settings(run["config"], kept["config"]) == []:
            assert run["summary"] == kept["summary"], path
            same += 1
    assert same >= len({path.parent for path in SWEPT})


@pytest.mark.parametrize("path", CHOICES, ids=lambda path: path.parent.name)
def test_each_method_has_the_optimiser_that_was_best_for_it(path: Path) -> None:
    tried = json.loads(path.read_text("utf-8"))["accuracy"]
    assert tried
    for method, candidates in tried.items():
        best = max(candidates, key=lambda name: sum(candidates[name]))
        config = load_config(path.parent.name, [f"method.name={method}"])
        assert config.document()["method"]["optimiser"] == best, method


def test_runs_with_pre_training_are_named_so_and_stand_in_no_table_with_others() -> None:
    assert PRETRAINED
    page = (ROOT / "REPRODUCTION.md").read_text("utf-8")
    before, heading, after = page.partition("## With ImageNet pre-training")
    assert heading
    for preset in {path.parent.name for path in PRETRAINED}:
        assert f"| {preset} |" not in page
        assert preset not in before
        assert f"### {preset}" in after
    assert not {run.experiment for run in shipped_runs()} & {path.parent.name for path in PRETRAINED}


def check(path: Path, wanted: Config) -> None:
    kept = read_kept(path)
    assert differing_settings(kept.config, wanted.document()) == []
    summary = kept.summary
    assert summary["failures"] == []
    assert (summary["method"], summary["seed"]) == (wanted.method_name, wanted.seed)
    assert summary["average"] == pytest.approx(sum(summary["accuracy"]) / len(summary["accuracy"]), abs=1e-3)
