from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from fcil.errors import CheckpointError
from fcil.federation.rounds import RoundRecord
from fcil.results.records import FILE, append_record, read_records


def record(number: int, **fields: Any) -> RoundRecord:
    plain = {
        "round": number,
        "task": 0,
        "classes": 2,
        "clients": 4,
        "groups": {"S_o": 0, "S_b": 0, "S_n": 4},
        "participants": [0, 3],
        "reports": 2,
        "alarms": [1],
        "arrivals": [],
        "entropy": 0.1 + 0.2,
        "loss": None,
        "proxy": {"probes": 3},
        "bytes_up": 10,
        "bytes_down": 20,
        "failures": [{"client": 1, "round": number, "stage": "fit", "reason": "a\nline, \u00fcber"}],
        "seconds": 0.5,
    }
    return RoundRecord(**{**plain, **fields})


@pytest.fixture
def three(tmp_path: Path) -> Path:
    for number in range(3):
        append_record(tmp_path, record(number))
    return tmp_path


def test_records_read_back_as_they_were(three: Path) -> None:
    assert read_records(three) == [asdict(record(number)) for number in range(3)]
    assert (three / FILE).read_bytes().count(b"\n") == 3


def test_a_folder_without_records_has_none(tmp_path: Path) -> None:
    assert read_records(tmp_path) == []


def test_a_last_line_cut_anywhere_is_left_out(three: Path) -> None:
    whole = (three / FILE).read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for end in range(start, len(whole) - 1, 7):
        (three / FILE).write_bytes(whole[:end])
        assert [found["round"] for found in read_records(three)] == [0, 1]


def test_a_last_line_that_only_lacks_its_end_counts(three: Path) -> None:
    (three / FILE).write_bytes((three / FILE).read_bytes().rstrip(b"\n"))
    assert [found["round"] for found in read_records(three)] == [0, 1, 2]


@pytest.mark.parametrize("broken", ['{"round": 1', "\x00\x00", "nonsense"])
def test_a_broken_line_in_the_middle_is_named(three: Path, broken: str) -> None:
    lines = (three / FILE).read_text().splitlines()
    lines[1] = broken
    (three / FILE).write_text("\n".join(lines) + "\n")
    with pytest.raises(CheckpointError, match=f"{FILE}, line 2"):
        read_records(three)


def test_a_whole_last_line_that_is_broken_is_named(three: Path) -> None:
    with (three / FILE).open("a") as file:
        file.write('{"round": 3\n')
    with pytest.raises(CheckpointError, match=f"{FILE}, line 4"):
        read_records(three)


def test_every_record_is_one_line_of_plain_json(three: Path) -> None:
    for line in (three / FILE).read_text("utf-8").splitlines():
        assert json.loads(line)["failures"][0]["reason"] == "a\nline, \u00fcber"
