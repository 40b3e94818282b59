"""The benchmark of hostile clients: it goes on where it was, and judges by its bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import poison, poison_page
from fcil.core.files import append_durably
from fcil.experiment.config import load_config

ROOT = Path(__file__).parents[2]


def row(aggregator: str, attack: str, accuracy: float | None, seed: int = 2021, **more: Any) -> dict[str, Any]:
    return {
        "method": "mosaic",
        "aggregator": aggregator,
        "attack": attack,
        "seed": seed,
        "accuracy": accuracy,
        "machine": "x86",
        **more,
    }


ROWS = [
    row("mean", "none", 96.0),
    row("mean", "none", 98.0, 2022),
    row("krum", "none", 95.0),
    row("krum", "none", 97.5, 2022),
    row("krum", "sign-flip", 94.5),
    row("krum", "x100", None),
    row("krum", "backdoor", 94.0, backdoor=30.0),
    row("krum", "silent", 10.0),
    row("krum", "none", 1.0, 2020),
]


def test_losses_are_those_against_the_clean_mean_and_a_run_that_stops_has_lost_everything() -> None:
    (mean, krum) = poison_page.verdicts(poison_page.cells(ROWS, poison.SEEDS))
    assert (mean["cost"], mean["lost"], mean["missed"]) == (0.0, {}, [])
    assert krum["cost"] == 0.75
    assert krum["lost"] == {"sign-flip": 1.5, "x100": 96.0, "backdoor": 2.0}, "of the seed that was tried"
    assert krum["missed"] == ["x100", "backdoor success"]
    assert krum["seeds"] == 2


def test_the_table_has_means_deviations_and_the_success_of_a_backdoor() -> None:
    lines = poison_page.table(poison_page.cells(ROWS, poison.SEEDS), poison.ATTACKS).splitlines()
    assert lines[0] == "| method | none | silent | sign-flip | x100 | backdoor |"
    assert lines[3] == "| mosaic, `krum` | 96.2 ±1.8 | 10.0 ±0.0 | 94.5 ±0.0 | stops | 94.0 ±0.0 (30) |"


def test_runs_that_are_there_are_not_repeated_and_a_line_that_was_cut_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[tuple[Any, ...]] = []

    def measure(experiment: str, method: str, aggregator: str, attack: str, seed: int) -> dict[str, Any]:
        made.append((aggregator, attack))
        return row(aggregator, attack, 90.0, seed)

    monkeypatch.setattr(poison, "measure", measure)
    path = tmp_path / "digits.jsonl"
    path.write_text(json.dumps(row("mean", "none", 96.0)) + '\n{"method": "mosa')
    options = ["--results", str(tmp_path), "--seeds", "2021", "--methods", "mosaic", "--aggregators", "mean", "krum"]
    assert poison.main([*options, "--attacks", "none", "noise"]) == 0
    assert made == [("mean", "noise"), ("krum", "none"), ("krum", "noise")]
    assert [entry["aggregator"] for entry in poison.read_runs(path)] == ["mean", "mean", "krum", "krum"]
    assert poison.main([*options, "--attacks", "none", "noise"]) == 0
    assert len(made) == 3
    assert "| mosaic, `krum` | 90.0 ±0.0 | 90.0 ±0.0 |" in capsys.readouterr().out


def test_the_page_says_what_the_kept_rows_say(tmp_path: Path) -> None:
    page = (ROOT / "results" / "poison" / "README.md").read_text("utf-8")
    assert page == poison.kept_page(ROOT / "results" / "poison")
    for row_ in (*ROWS, row("krum", "none", 0.0, 2025)):
        append_durably(tmp_path / "digits.jsonl", (json.dumps(row_) + "\n").encode())
    page = poison.kept_page(tmp_path)
    assert "8 runs with the seeds 2021, 2022 on x86." in page, "the seed on which settings were chosen is left out"
    assert "| mosaic, `krum` | 2 | 0.8 | 96.0 (x100) | 30 | x100, backdoor success |" in page


@pytest.mark.parametrize("experiment", poison.EXPERIMENTS)
def test_every_case_is_a_configuration(experiment: str) -> None:
    for attack in poison.ATTACKS:
        for aggregator in ("mean", "median"):
            chosen = poison.settings(experiment, "mosaic", aggregator, attack, 2021)
            config = load_config(poison.PRESETS.get(experiment, experiment), chosen)
            assert config.attack.on == (attack != "none")
