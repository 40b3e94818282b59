from __future__ import annotations

from collections.abc import Iterator

import pytest

from fcil.core import stopwatch
from fcil.core.stopwatch import Stopwatch, timed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: now[0])
    return now


def test_a_phase_inside_another_counts_apart_from_it(clock: list[float]) -> None:
    watch = Stopwatch()
    with watch.phase("train"):
        clock[0] += 1
        for _ in range(2):
            with timed("teacher"):
                clock[0] += 4
        clock[0] += 2
    clock[0] += 100  # between phases
    with timed("teacher"):
        clock[0] += 100  # no stopwatch runs
    assert watch.drain() == {"train": 3, "teacher": 8}
    assert watch.drain() == {}


def test_a_stopwatch_inside_another_takes_the_phases_until_it_ends(clock: list[float]) -> None:
    outer, inner = Stopwatch(), Stopwatch()

    def values() -> Iterator[int]:
        with inner.phase("train"), timed("teacher"):
            clock[0] += 3
        yield 1
        with timed("sums"):
            clock[0] += 5

    for _ in outer.each("train", values()):
        clock[0] += 100
    assert inner.seconds == {"train": 0, "teacher": 3}
    assert outer.seconds == {"train": 3, "sums": 5}


def test_a_phase_that_fails_still_ends(clock: list[float]) -> None:
    watch = Stopwatch()
    with pytest.raises(ValueError, match="broken"), watch.phase("train"), timed("teacher"):
        clock[0] += 1
        raise ValueError("broken")
    clock[0] += 10
    with timed("teacher"):
        clock[0] += 10
    assert watch.seconds == {"train": 0, "teacher": 1}


def test_what_workers_measured_divides_the_time_that_was_waited_for_them() -> None:
    watch = Stopwatch()
    watch.seconds = {"train": 6.0, "teacher": 1.0}
    watch.divide("train", {})
    watch.divide("proxy", {"inversion": 1.0})
    assert watch.seconds == {"train": 6.0, "teacher": 1.0}
    watch.divide("train", {"train": 9.0, "teacher": 3.0})  # of two workers at once
    assert watch.seconds == {"train": 4.5, "teacher": 2.5}
