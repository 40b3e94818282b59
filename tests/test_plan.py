from __future__ import annotations

import math

import pytest
import torch

from fcil.config import load_config
from fcil.data.scenario import Scenario
from fcil.data.sources import load_source
from fcil.errors import DataError
from fcil.plan import Plan, count_volume, make_plan

SMALL = ["scenario.tasks=[2, 2]", "scenario.rounds_per_task=2", "model.width=2", "train.epochs=3", "method.name=icarl"]


def volume_of(*settings: str) -> tuple[int, int]:
    config = load_config("digits", [*SMALL, *settings])
    source = load_source(config.data)
    scenario = Scenario(config.scenario, source.train.labels, source.classes, config.seed)
    counted = count_volume(config, source, scenario, has_teacher=True)
    return counted.trained, counted.taught


def test_training_samples_are_those_of_the_scenario() -> None:
    config = load_config("digits", [*SMALL, "scenario.memory=0"])
    source = load_source(config.data)
    scenario = Scenario(config.scenario, source.train.labels, source.classes, config.seed)
    held = [
        sum(len(scenario.holding(number, client)) for client in scenario.participants(number)) for number in range(4)
    ]
    assert volume_of("scenario.memory=0") == (3 * sum(held), 3 * sum(held[2:]))


def test_a_memory_adds_its_exemplars_from_the_second_task_on() -> None:
    config = load_config("digits", SMALL)
    source = load_source(config.data)
    scenario = Scenario(config.scenario, source.train.labels, source.classes, config.seed)
    old = sum(len(scenario.holding(1, client)) > 0 for number in (2, 3) for client in scenario.participants(number))
    assert volume_of("scenario.memory=10")[0] - volume_of("scenario.memory=0")[0] == 3 * 10 * old


def test_a_plan_has_positive_figures_and_says_what_it_left_out() -> None:
    plan = make_plan(load_config("digits", [*SMALL, "method.name=glfc", "run.workers=1"]), seconds=0.2)
    assert isinstance(plan, Plan)
    assert plan.workers == 1
    assert 0 < plan.hours < 1
    assert all(math.isfinite(value) and value > 0 for value in (plan.operations, plan.memory_bytes, plan.speed.trained))
    assert any("proxy" in note for note in plan.notes)
    assert dict(plan.lines())["rounds"] == "4"


def test_an_absent_data_set_is_taken_at_its_published_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: object) -> None:
        raise DataError("not here")

    monkeypatch.setattr("fcil.plan.load_source", absent)
    settings = ["model.width=1", "scenario.rounds_per_task=1", "train.batch_size=4", "run.device=cpu"]
    plan = make_plan(load_config("cifar100-t10", settings), seconds=0.1)
    assert plan.volume.data_bytes == 60_000 * 3 * 32 * 32
    assert plan.volume.clients == 120
    assert "published size" in plan.notes[0]
    with pytest.raises(DataError, match="not here"):
        make_plan(load_config("digits", SMALL), seconds=0.1)


def test_where_there_is_no_gpu_the_processor_is_measured() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    plan = make_plan(load_config("digits", [*SMALL, "run.device=cuda"]), seconds=0.1)
    assert any("no cuda here" in note for note in plan.notes)
