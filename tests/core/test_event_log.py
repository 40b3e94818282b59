"""Events are lines with time and level or JSON, on the screen and in a log file that is rotated."""

from __future__ import annotations

import json
import logging
from datetime import datetime
from pathlib import Path

import pytest

from fcil.core import event_log
from fcil.core.event_log import FILE, EventLog


def shown(folder: Path, shape: event_log.Shape) -> list[tuple[str, int]]:
    lines: list[tuple[str, int]] = []
    events = EventLog(folder, shape, lambda line, level: lines.append((line, level)))
    events.say("round 1: 12 images")
    events.say("warning: the disk\nis full")
    events.event("round 2", shown=False, round=2)
    events.close()
    return lines


def test_plain_lines_are_as_they_were_and_the_file_has_time_and_level(tmp_path: Path) -> None:
    assert shown(tmp_path, "plain") == [
        ("round 1: 12 images", logging.INFO),
        ("warning: the disk is full", logging.WARNING),
    ]
    lines = (tmp_path / FILE).read_text().splitlines()
    assert [line.split(" ", 2)[1:] for line in lines] == [
        ["INFO", "round 1: 12 images"],
        ["WARNING", "the disk is full"],
        ["INFO", "round 2"],
    ]
    assert all(datetime.fromisoformat(line.split(" ")[0]).tzinfo is not None for line in lines)


def test_json_has_one_object_per_line_with_the_facts_of_an_event(tmp_path: Path) -> None:
    lines = [json.loads(line) for line, _ in shown(tmp_path, "json")]
    assert [line["event"] for line in lines] == ["round 1: 12 images", "the disk is full", "round 2"]
    assert [line["level"] for line in lines] == ["INFO", "WARNING", "INFO"]
    assert lines[2]["round"] == 2
    assert [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()] == lines
    assert shown(tmp_path, "text")[1][0].endswith(" WARNING the disk is full")


def test_the_file_is_rotated_and_its_failures_stop_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "SIZE", 2000)
    events = EventLog(tmp_path, "plain", lambda line, level: None)
    for number in range(300):
        events.say(f"round {number} {'.' * 40}")
    events.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == [FILE, *(f"{FILE}.{number}" for number in range(1, event_log.KEPT + 1))]
    assert all(path.stat().st_size <= 2000 for path in tmp_path.iterdir())
    lost = EventLog(tmp_path / "gone", "plain", lambda line, level: None)
    lost.say("nothing happens")
