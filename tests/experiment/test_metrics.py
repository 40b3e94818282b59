from __future__ import annotations

from typing import Any

import pytest
from support.records import record

from fcil.experiment.metrics import (
    Detection,
    accuracy_matrix,
    accuracy_per_task,
    backward_transfer,
    classes_seen,
    detection,
    forgetting,
)
from fcil.experiment.summary import summarise
from fcil.experiment.warnings import remarks
from fcil.federation.round_record import RoundRecord

KEYS = [
    "method",
    "edition",
    "seed",
    "accuracy",
    "accuracy_matrix",
    "classes_seen",
    "average",
    "last",
    "forgetting",
    "backward_transfer",
    "detection",
    "bytes_up",
    "bytes_down",
    "failures",
    "warnings",
    "seconds",
]
MATRIX = [[80.0], [90.0, 50.0], [60.0, 70.0, 40.0]]


def three_tasks() -> list[RoundRecord]:
    return [
        record(0, 0, bytes_up=5, bytes_down=7, seconds=0.25, arrivals=[0, 1], alarms=[0]),
        record(1, 0, correct=[8], total=[10], seconds=1.5, alarms=[1]),
        record(2, 1, correct=[1, 1], total=[10, 20]),
        record(3, 1, correct=[9, 10], total=[10, 20], bytes_up=1, failures=[{"client": 3, "round": 4}]),
        record(4, 2),
        record(5, 2, correct=[6, 14, 2], total=[10, 20, 5], bytes_down=2, failures=[{"client": 1, "round": 6}]),
    ]


def test_the_matrix_takes_the_last_evaluation_of_each_task() -> None:
    assert accuracy_matrix(three_tasks()) == MATRIX


def test_accuracy_counts_images_over_all_classes_seen() -> None:
    assert accuracy_per_task(three_tasks()) == pytest.approx([80.0, 100 * 19 / 30, 100 * 22 / 35])


def test_a_class_that_was_tested_has_come_though_it_waits_for_its_output() -> None:
    tested = {str(label): (0, 5) for label in range(4)}
    late = record(0, 0, classes=2, correct=[5], total=[20], per_class=tested, ends_task=True)
    assert classes_seen([late]) == [4]
    assert remarks([late])[0].startswith("the accuracy after round 1 is 25.0 %, no better than chance with 4 classes")
    assert classes_seen(three_tasks()) == [2, 4, 6]  # of earlier versions, whose records have no figures by class


def test_without_evaluations_there_is_no_accuracy() -> None:
    assert accuracy_matrix([record(0)]) == []
    assert accuracy_per_task([record(0)]) == []


def test_forgetting_is_the_fall_from_the_best_accuracy_before() -> None:
    assert forgetting(MATRIX) == pytest.approx(((90 - 60) + (50 - 70)) / 2)


def test_the_best_accuracy_before_does_not_include_the_final_one() -> None:
    assert forgetting([[50.0], [90.0, 10.0]]) == pytest.approx(-40.0)


def test_backward_transfer_is_the_change_since_a_task_was_learnt() -> None:
    assert backward_transfer(MATRIX) == pytest.approx(((60 - 80) + (70 - 50)) / 2)
    assert backward_transfer([[50.0], [90.0, 10.0]]) == pytest.approx(40.0)


@pytest.mark.parametrize("measure", [forgetting, backward_transfer])
@pytest.mark.parametrize("matrix", [[], [[70.0]]])
def test_of_one_task_or_none_it_is_not_defined(measure: Any, matrix: list[list[float]]) -> None:
    assert measure(matrix) is None


def test_an_alarm_in_the_round_of_the_arrival_is_a_hit_without_delay() -> None:
    assert detection([record(0, arrivals=[1, 2], alarms=[1, 2])]) == Detection(
        hits=2, misses=0, false_alarms=0, mean_delay=0.0
    )


def test_a_late_alarm_is_a_hit_with_its_delay() -> None:
    records = [record(0, arrivals=[1, 2]), record(1, alarms=[1]), record(2), record(3, alarms=[2])]
    assert detection(records) == Detection(hits=2, misses=0, false_alarms=0, mean_delay=2.0)


def test_an_alarm_without_an_open_arrival_is_false() -> None:
    records = [record(0, alarms=[5]), record(1, arrivals=[5], alarms=[5]), record(2, alarms=[5])]
    assert detection(records) == Detection(hits=1, misses=0, false_alarms=2, mean_delay=0.0)


def test_an_arrival_still_open_when_the_next_comes_is_a_miss_and_the_alarm_answers_the_newer() -> None:
    records = [record(0, arrivals=[5]), record(3, arrivals=[5]), record(4, alarms=[5])]
    assert detection(records) == Detection(hits=1, misses=1, false_alarms=0, mean_delay=1.0)


def test_an_arrival_open_at_the_end_is_a_miss() -> None:
    records = [record(0, arrivals=[5, 6]), record(3, arrivals=[5])]
    assert detection(records) == Detection(hits=0, misses=3, false_alarms=0, mean_delay=None)


def test_clients_are_counted_apart() -> None:
    records = [record(0, arrivals=[1], alarms=[2]), record(1, arrivals=[2], alarms=[1])]
    assert detection(records) == Detection(hits=1, misses=1, false_alarms=1, mean_delay=1.0)


def test_a_summary_has_exactly_the_published_keys() -> None:
    summary = summarise(three_tasks(), "glfc", "paper", 2022)
    assert list(summary) == KEYS
    assert list(summary["detection"]) == ["hits", "misses", "false_alarms", "mean_delay"]


def test_a_summary_adds_up_the_run() -> None:
    summary = summarise(three_tasks(), "glfc", "paper", 2022)
    assert (summary["method"], summary["edition"], summary["seed"]) == ("glfc", "paper", 2022)
    assert summary["accuracy"] == [80.0, 63.3333, 62.8571]
    assert summary["accuracy_matrix"] == MATRIX
    assert summary["classes_seen"] == [2, 4, 6]
    assert summary["average"] == pytest.approx((80 + 100 * 19 / 30 + 100 * 22 / 35) / 3, abs=1e-4)
    assert summary["last"] == 62.8571
    assert (summary["forgetting"], summary["backward_transfer"]) == (5.0, 0.0)
    assert summary["detection"] == {"hits": 2, "misses": 0, "false_alarms": 0, "mean_delay": 0.5}
    assert (summary["bytes_up"], summary["bytes_down"], summary["seconds"]) == (6, 9, 1.75)
    assert summary["failures"] == [{"client": 3, "round": 4}, {"client": 1, "round": 6}]


def test_a_run_that_measured_nothing_yet_has_a_summary_too() -> None:
    summary = summarise([], "glfc", "fcil", 1)
    assert list(summary) == KEYS
    assert (summary["accuracy"], summary["average"], summary["last"]) == ([], None, None)
    assert (summary["forgetting"], summary["backward_transfer"]) == (None, None)
