"""A run with differential privacy from the command line: progress, records, summary and page tell its guarantee."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command import fcil

from fcil.experiment.config import load_config

pytestmark = pytest.mark.numeric
SMALL = ["--set", "data.samples_per_class=8", "--set", "model.width=2", "--set", "scenario.tasks=2",
         "--set", "scenario.rounds_per_task=1", "--set", "scenario.initial_clients=3", "--set", "scenario.joiners=0",
         "--set", "scenario.split=disjoint", "--set", "privacy.epsilon=2.0", "--engine", "serial"]  # fmt: skip
GUARANTEE = {"epsilon": 2.0, "delta": 1e-5}


def test_the_guarantee_is_told_wherever_a_run_is_shown(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = fcil("run", "digits", "--method", "analytic", *SMALL, "--out", folder)
    assert done.returncode == 0
    assert "task 1/2  round 1/2  3 of 3 clients  epsilon 2  accuracy" in done.stdout
    assert "epsilon 2 at delta 1e-05 for each image of a client; not covered: ids of new classes" in done.stdout
    assert "privacy.epsilon 2 takes about" in done.stderr  # too few images
    summary = json.loads((folder / "summary.json").read_text())
    assert {key: summary["privacy"][key] for key in GUARANTEE} == GUARANTEE
    assert "when and how often a client answers" in summary["privacy"]["not_covered"]
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert [record["privacy"] for record in records] == [GUARANTEE] * 2
    assert fcil("report", folder).returncode == 0
    page = (folder / "report.html").read_text()
    assert "Differential privacy: epsilon 2 at delta 1e-05" in page
    assert "this is an experiment, not protection" in page


def test_the_example_is_a_private_federation() -> None:
    config = load_config(str(Path(__file__).parents[2] / "examples" / "private.toml"))
    assert (config.method_name, config.privacy.epsilon, config.federation.aggregator) == ("analytic", 2.0, "masked")
    assert not config.scenario.is_shared
    assert config.scenario.participants == config.scenario.initial_clients
