"""Which runs share a curve, what it is called, and how high its axis is."""

from __future__ import annotations

from typing import Any

import pytest

from fcil.experiment.summary import summarise
from fcil.reporting.curves import curves
from fcil.reporting.run_facts import RunFacts


def run(name: str, accuracy: list[float], seed: int = 1, method: str = "glfc", **config: Any) -> RunFacts:
    summary = summarise([], method, "fcil", seed)
    summary = {**summary, "accuracy": accuracy, "classes_seen": [2 * (place + 1) for place in range(len(accuracy))]}
    return RunFacts(name, "kept", summary, {"seed": seed, "data": {"source": "digits"}, **config})


def test_seeds_of_one_experiment_make_one_curve_with_their_mean_and_deviation() -> None:
    (curve,) = curves([run("a", [90.0, 40.0]), run("b", [80.0, 60.0], seed=2)])
    assert (curve.label, curve.classes, curve.means) == ("glfc", (2, 4), (85.0, 50.0))
    assert curve.spread == pytest.approx((50**0.5, 200**0.5))
    low, high = curve.band
    assert [low[0] + high[0], high[1] - low[1]] == pytest.approx([170.0, 2 * 200**0.5])


def test_the_band_of_a_curve_ends_at_0_and_100() -> None:
    (curve,) = curves([run("a", [100.0, 0.0, 50.0]), run("b", [90.0, 4.0, 52.0], seed=2)])
    low, high = curve.band
    assert (high[0], low[1]) == (100.0, 0.0)
    assert low[0] == pytest.approx(95 - 50**0.5)
    assert high[2] == pytest.approx(51 + 2**0.5)


def test_other_settings_or_the_same_seed_make_another_curve() -> None:
    small, large = {"scenario": {"memory": 20}}, {"scenario": {"memory": 40}}
    found = curves([run("a", [9.0], **small), run("b", [8.0], seed=2, **large), run("c", [7.0], seed=1, **small)])
    assert [curve.label for curve in found] == ["glfc (a)", "glfc (b)", "glfc (c)"]
    assert all(curve.spread == () for curve in found)


def test_a_run_under_way_has_the_tasks_of_its_scenario() -> None:
    five = {"scenario": {"tasks": [2, 2, 2, 2, 2]}}
    found = curves([run("a", [9.0, 8.0, 7.0], **five), run("b", [9.0, 8.0, 7.0, 6.0, 5.0], seed=2, **five)])
    assert [curve.label for curve in found] == ["glfc (a)", "glfc (b)"]


def test_where_its_files_lay_and_how_it_was_played_does_not_make_another_experiment() -> None:
    first = run("a", [9.0], data={"source": "digits", "path": "x"}, run={"workers": 1}, description="one")
    second = run("b", [8.0], seed=2, data={"source": "digits", "path": "y"}, run={"workers": 2}, description="two")
    older = run("c", [7.0], seed=3, data={"source": "digits"})
    assert len(curves([first, second, older])) == 1


@pytest.mark.parametrize(
    ("other", "labels"),
    [
        (run("run", [80.0, 70.0, 60.0], seed=2), ["glfc (2 tasks)", "glfc (3 tasks)"]),
        (run("run", [80.0, 70.0], seed=2, data={"source": "cifar100"}), ["glfc (digits)", "glfc (cifar100)"]),
        (run("run", [80.0, 70.0], seed=2, method="icarl"), ["glfc", "icarl"]),
    ],
)
def test_curves_of_one_method_are_told_apart_by_what_differs(other: RunFacts, labels: list[str]) -> None:
    assert [curve.label for curve in curves([run("run", [90.0, 80.0]), other, run("empty", [])])] == labels
