from __future__ import annotations

from typing import Any

import pytest
import torch

from fcil.core.errors import ConfigError
from fcil.data.scenario.checks import foresee, other_blocks
from fcil.data.scenario.population import MOST_CLIENTS, Event
from fcil.data.scenario.scenario import Scenario, ScenarioConfig
from fcil.experiment.config import load_config
from fcil.experiment.presets import preset_names

QUIET = {"tasks": 2, "rounds_per_task": 2, "initial_clients": 4, "joiners": 1, "participants": 3, "class_fraction": 1.0}


def build(samples: int = 15, **fields: Any) -> Scenario:
    return Scenario(ScenarioConfig(**{**QUIET, **fields}), torch.arange(4).repeat(samples), 4, seed=5)


def test_an_ordinary_scenario_is_not_remarked_upon() -> None:
    assert foresee(build(), min_participants=3) == []
    assert foresee(build(split="disjoint")) == []


@pytest.mark.parametrize("name", preset_names())
def test_no_preset_asks_for_more_participants_than_it_has(name: str) -> None:
    config = load_config(name).scenario
    assert config.participants <= config.initial_clients


def test_clients_without_data_are_counted() -> None:
    found = foresee(build(initial_clients=3000, split="disjoint"))
    assert len(found) == 1
    assert "scenario.split: 2985 of the 3000 clients of the first round hold no data" in found[0]


def test_more_participants_than_clients_are_remarked_upon_where_they_are_fewest() -> None:
    scenario = build(joiners=0, leaves=(Event(round=4, clients=2),))
    assert foresee(scenario) == ["scenario.participants: 3 should train per round, but round 4 has only 2 clients"]


def test_fewer_clients_than_must_answer_are_refused() -> None:
    scenario = build(joiners=0, leaves=(Event(round=4, clients=2),))
    with pytest.raises(ConfigError, match=r"federation\.min_participants: found 3, should be at most 2.* round 4"):
        foresee(scenario, min_participants=3)


def test_a_task_whose_data_reaches_nobody_is_remarked_upon() -> None:
    found = foresee(build(joiners=0, both_share=0.0))
    assert found == ["scenario.both_share: at 0.0 nobody gets the data of task 2, as no client joins"]
    assert foresee(build(joiners=0, both_share=0.0, joins=(Event(round=4, clients=1),))) == []


def test_blocks_of_another_length_than_planned_are_remarked_upon() -> None:
    assert other_blocks(build(rounds_per_task=5), epochs=4, planned=20) == []
    (found,) = other_blocks(build(rounds_per_task=5), epochs=4, planned=200)
    assert found.startswith("train.block_epochs: learning rates are scheduled for blocks of 200 local epochs, but ")
    assert found.endswith("scenario.rounds_per_task x train.epochs is 5 x 4 = 20")


@pytest.mark.parametrize(
    "fields",
    [{"leavers": 4, "joiners": 0}, {"joiners": 0, "leaves": (Event(round=2, clients=4),)}],
)
def test_a_federation_that_everybody_leaves_is_refused_at_the_start(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"scenario\.leavers, scenario\.leaves: all 4 clients leave at round"):
        build(**fields)


def test_all_may_leave_where_others_join() -> None:
    assert build(leavers=4).clients(2) == [4]


@pytest.mark.parametrize(
    "fields",
    [
        {"initial_clients": MOST_CLIENTS},
        {"joiners": MOST_CLIENTS},
        {"joins": (Event(round=2, clients=MOST_CLIENTS),)},
    ],
)
def test_more_clients_in_all_than_tables_can_hold_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"scenario\.initial_clients.*clients in all, should be at most 1000000"):
        build(**fields)
