from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fcil.core.errors import DamagedError, FileError
from fcil.experiment.journal import FILE, Journal
from fcil.federation.round_record import RoundRecord


def record(number: int, **fields: Any) -> RoundRecord:
    plain = {
        "round": number + 1,
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
        "failures": [{"client": 1, "round": number + 1, "stage": "fit", "reason": "a\nline, \u00fcber"}],
        "seconds": 0.5,
    }
    return RoundRecord(**{**plain, **fields})


@pytest.fixture
def three(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path)
    for number in range(3):
        journal.append(record(number))
    return journal


def read(written: Journal, rounds: int = 3) -> Journal:
    return Journal.read(written.path.parent, rounds, written.digest)


def test_records_read_back_as_they_were(three: Journal) -> None:
    found = read(three)
    assert found.records == three.records == [record(number) for number in range(3)]
    assert found.digest == three.digest
    assert three.path.read_bytes().count(b"\n") == 3


def test_exclusions_are_written_where_there_are_any(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number, excluded in enumerate(([], [{"client": 3, "reason": "too far away"}])):
        journal.append(record(number, excluded=excluded))
    assert [b'"excluded"' in line for line in journal.path.read_bytes().splitlines()] == [False, True]
    assert read(journal, 2).records == journal.records


def test_a_folder_without_records_has_none(tmp_path: Path) -> None:
    assert Journal.read(tmp_path, 0, Journal(tmp_path).digest).records == []
    Journal(tmp_path).drop_rest()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tail", [b'{"round": 3', b"nonsense\n" * 4, b"\xff\x00\n"])
def test_what_follows_the_rounds_of_the_checkpoint_is_not_believed_and_dropped(three: Journal, tail: bytes) -> None:
    whole = three.path.read_bytes()
    three.path.write_bytes(whole + tail)
    found = read(three)
    assert [entry.round for entry in found.records] == [1, 2, 3]
    found.drop_rest()
    assert three.path.read_bytes() == whole
    found.append(record(3))
    assert Journal.read(three.path.parent, 4, found.digest).records[3] == record(3)


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [],
        lambda lines: lines[:2],
        lambda lines: [lines[0], lines[2]],
        lambda lines: [lines[0], lines[0], *lines[1:]],
        lambda lines: [lines[1], lines[0], lines[2]],
        lambda lines: [lines[0], lines[1].replace(b'"bytes_up": 10', b'"bytes_up": 11'), lines[2]],
        lambda lines: [lines[0], b"[1]\n", lines[2]],
        lambda lines: [*lines[:2], lines[2][:-1]],
    ],
    ids=["empty", "short", "one missing", "one twice", "swapped", "changed", "no record", "cut"],
)
def test_lines_that_are_not_those_of_the_checkpoint_are_refused(
    three: Journal, damage: Callable[[list[bytes]], list[bytes]]
) -> None:
    three.path.write_bytes(b"".join(damage(three.path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(DamagedError, match=f"{three.path} is damaged: it"):
        read(three)


def test_a_missing_file_has_no_lines(three: Journal) -> None:
    three.path.unlink()
    with pytest.raises(DamagedError, match="it has 0 whole lines for 3 rounds"):
        read(three)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{}", "line 1: round: Field required"),
        ("[1]", "line 1: Input should be"),
        ("NaN", "line 1: "),
        ('{"round": 0', "line 1: Invalid JSON"),
        (json.dumps({**record(0).__dict__, "round": True}), "line 1: round: Input should be a valid integer"),
        (json.dumps({**record(0).__dict__, "seconds": float("nan")}), "line 1: seconds: Input should be a finite"),
        (json.dumps({**record(0).__dict__, "failures": [{"client": 1}]}), "line 1: failures.0.round: Field required"),
        (json.dumps({**record(0).__dict__, "mood": 1}), "line 1: mood: "),
        (json.dumps(record(7).__dict__), "line 1 is about round 8; it should be about round 1"),
    ],
)
def test_a_line_is_a_record_of_its_round_with_every_field_of_its_type(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(DamagedError) as caught:
        Journal(tmp_path, [line.encode() + b"\n"])
    assert f"{tmp_path / FILE}, {said}" in str(caught.value)


def test_a_directory_in_its_place_gets_a_sentence(three: Journal) -> None:
    three.path.unlink()
    three.path.mkdir()
    for action in (lambda: read(three), lambda: three.append(record(3)), three.drop_rest):
        with pytest.raises(FileError, match=f"{three.path} cannot be (read|written): Is a directory"):
            action()
    assert three.records == [record(number) for number in range(3)]


def test_every_record_is_one_line_of_plain_json(three: Journal) -> None:
    for line in three.path.read_text("utf-8").splitlines():
        assert json.loads(line)["failures"][0]["reason"] == "a\nline, \u00fcber"


def test_rounds_count_from_1(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in range(3):
        journal.append(record(number))
    lines = [json.loads(line) for line in journal.path.read_bytes().splitlines()]
    assert [line["round"] for line in lines] == [one.round for one in journal.records] == [1, 2, 3]
    assert [failure["round"] for line in lines for failure in line["failures"]] == [1, 2, 3]
