"""A simulation's calibration: fitted on every other test image, measured on the rest and on classes to come."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import torch

from fcil.core.messages import generator
from fcil.federation.calibration import Scored, record_of
from fcil.maths.calibration import area_under_curve, fitted, score_sums, scores
from fcil.testing import trial

SMALL: dict[str, Any] = {"tasks": 2, "rounds_per_task": 2, "initial_clients": 3, "joiners": 0, "participants": 3}


def test_each_class_is_divided_between_fit_and_measurement() -> None:
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    logits = torch.randn(7, 2, generator=generator(3)) * 3
    scored = Scored(labels)
    for part in torch.split(torch.arange(7), 4):
        scored.see(part, logits[part], labels[part])
    fit, rest = torch.tensor([0, 2, 4, 6]), torch.tensor([1, 3, 5])
    strangers = torch.zeros(2, 2)
    expected = record_of(score_sums(logits[fit], labels[fit]), logits[rest], labels[rest], strangers)
    assert scored.calibration([strangers]) == expected
    temperature = fitted(score_sums(logits[fit], labels[fit])).temperature
    assert expected["temperature"] == temperature
    area = area_under_curve(scores(logits[rest], temperature), scores(strangers, temperature))
    assert expected["unknown"] == pytest.approx(100 * area, abs=1e-3)


def test_a_model_whose_outputs_are_not_finite_has_no_calibration() -> None:
    scored = Scored(torch.tensor([0, 0]))
    scored.see(torch.arange(2), torch.tensor([[1.0, torch.nan], [0.0, 1.0]]), torch.tensor([0, 0]))
    assert scored.calibration([]) is None
    assert Scored(torch.tensor([0])).calibration([]) is None


def test_a_task_ends_with_a_calibration_and_only_the_last_one_has_no_classes_to_come() -> None:
    made = trial("finetune", scenario=SMALL)
    with closing(made.simulation.engine):
        found = [made.simulation.evaluate_fully(state) for state, _ in made.simulation.rounds(made.simulation.start())]
    assert [one.calibration is not None for one in found] == [False, True, False, True]
    first, last = found[1].calibration, found[3].calibration
    assert first is not None
    assert last is not None
    assert "unknown" in first
    assert "unknown" not in last
    assert 0 <= first["error"] <= 100
