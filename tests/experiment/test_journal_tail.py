"""Reading the journal of a run that somebody else writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.records import record

from fcil.experiment.journal import FILE, Tail, as_line

LINES = [as_line(record(number, seconds=number)) for number in range(4)]


def numbers(tail: Tail) -> list[int]:
    return [found.round for found in tail.new()]


def test_each_round_is_given_once_and_a_half_written_one_when_it_is_whole(tmp_path: Path) -> None:
    tail, path = Tail(tmp_path / "run"), tmp_path / "run" / FILE
    assert numbers(tail) == []  # not even a directory
    path.parent.mkdir()
    path.write_bytes(LINES[0] + LINES[1][:9])
    assert (numbers(tail), numbers(tail)) == ([1], [])
    path.write_bytes(b"".join(LINES[:3]))
    assert (numbers(tail), numbers(tail)) == ([2, 3], [])


def test_a_file_that_was_cut_is_read_from_its_start(tmp_path: Path) -> None:
    tail, path = Tail(tmp_path), tmp_path / FILE
    path.write_bytes(b"".join(LINES[:3]))
    assert numbers(tail) == [1, 2, 3]
    path.write_bytes(b"".join(LINES[:2]))
    assert (numbers(tail), numbers(tail)) == ([1, 2], [])


def test_a_file_that_was_cut_and_has_grown_since_is_read_from_its_start(tmp_path: Path) -> None:
    tail, path = Tail(tmp_path), tmp_path / FILE
    path.write_bytes(b"".join(LINES[:2]))
    assert numbers(tail) == [1, 2]
    path.write_bytes(as_line(record(0, entropy=0.123456789)) + b"".join(LINES[1:3]))
    assert (numbers(tail), numbers(tail)) == ([], [1, 2, 3])


@pytest.mark.parametrize("content", [b"\n", b"{}\n", b"\xff\xfe\n", LINES[1]])
def test_what_is_no_journal_gives_no_rounds(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    tail = Tail(tmp_path)
    assert (numbers(tail), numbers(tail)) == ([], [])
