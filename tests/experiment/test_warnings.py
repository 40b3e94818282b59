from __future__ import annotations

from typing import Any

from support.records import record as quiet_record

from fcil.experiment.warnings import Watch, remarks
from fcil.federation.round_record import RoundRecord


def record(number: int, **fields: Any) -> RoundRecord:
    return quiet_record(number, **{"classes": 4, "ends_task": True, **fields})


def test_a_loss_that_is_not_finite_is_said_once_with_the_likely_key() -> None:
    records = [record(0), record(1, diverged=[7]), record(2, diverged=[7, 8])]
    assert remarks(records) == ["the loss of client 7 in round 2 is not finite; a lower train.learning_rate may help"]
    assert "the loss of 2 clients in round 3" in remarks(records[2:])[0]


def test_accuracy_at_chance_is_said_once() -> None:
    records = [
        record(0, correct=[50], total=[100]),
        record(1, correct=[10, 15], total=[50, 50]),
        record(2, correct=[25], total=[100]),
    ]
    found = remarks(records)
    assert len(found) == 1
    assert found[0].startswith(
        "the accuracy after round 2 is 25.0 %, no better than chance with 4 classes; train.learning_rate"
    )


def test_a_frequent_class_guessed_always_counts_as_chance_and_a_little_learning_does_not() -> None:
    assert remarks([record(0, correct=[27], total=[100])])
    assert not remarks([record(0, correct=[28], total=[100])])


def test_within_a_task_and_with_a_single_class_chance_says_nothing() -> None:
    assert not remarks([record(0, correct=[25], total=[100], ends_task=False)])
    assert not remarks([record(0, correct=[100], total=[100], classes=1)])


def test_rounds_that_are_not_applied_are_named_each_while_they_come_and_together_at_the_end() -> None:
    records = [record(0), record(1, not_applied="the aggregate is not finite"), record(2, not_applied="too bad")]
    watch = Watch()
    assert [watch.see(one) for one in records] == [
        [],
        ["round 2 is not applied, an earlier model stays: the aggregate is not finite"],
        ["round 3 is not applied, an earlier model stays: too bad"],
    ]
    assert remarks(records) == ["2 of 3 rounds are not applied (2, 3); the first: the aggregate is not finite"]
    many = [record(number, not_applied="too bad") for number in range(12)]
    assert remarks(many)[0].startswith(
        "12 of 12 rounds are not applied (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...); the first"
    )
