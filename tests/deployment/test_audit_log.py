"""The journal of a federation's operators: complete, in order, and broken by any change."""

from __future__ import annotations

import hashlib
import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.consortium import Keyring

from fcil.core.errors import ConfigError, DamagedError, FileError
from fcil.deployment.server import audit_log
from fcil.deployment.server.roster import Roster


def lines(folder: Path) -> list[bytes]:
    return (folder / audit_log.FILE).read_bytes().splitlines()


def test_each_entry_names_its_time_its_person_and_the_digest_of_the_line_before(tmp_path: Path) -> None:
    told = [audit_log.note(tmp_path, "released", number=number) for number in (1, 2, 3)]
    found = audit_log.entries(tmp_path)
    assert [entry["number"] for entry in found] == [1, 2, 3]
    assert [entry["event"] for entry in found] == ["released"] * 3
    assert datetime.now(UTC) - datetime.fromisoformat(found[0]["time"]) < timedelta(hours=1)
    assert "@" in found[0]["by"]
    assert found[0]["previous"] == "0" * 64
    assert found[2]["previous"] == hashlib.sha256(lines(tmp_path)[1]).hexdigest()
    assert [hashlib.sha256(line).hexdigest()[:16] for line in lines(tmp_path)] == told
    assert audit_log.head(tmp_path) == told[-1]
    assert audit_log.head(tmp_path / "none") == ""


def test_a_line_that_was_changed_dropped_swapped_or_inserted_breaks_the_chain(tmp_path: Path) -> None:
    for number in range(4):
        audit_log.note(tmp_path, "added", number=number)
    whole = lines(tmp_path)
    changed = json.dumps({**json.loads(whole[1]), "number": 7}).encode()
    for what, broken in (
        ("changed", [whole[0], changed, *whole[2:]]),
        ("dropped", [whole[0], *whole[2:]]),
        ("swapped", [whole[0], whole[2], whole[1], whole[3]]),
        ("inserted", [whole[0], whole[0], *whole[1:]]),
        ("no JSON", [whole[0], b"[", *whole[2:]]),
        ("no object", [whole[0], b"[]", *whole[2:]]),
    ):
        (tmp_path / audit_log.FILE).write_bytes(b"\n".join([*broken, b""]))
        with pytest.raises(DamagedError, match=r"line [23] does not follow"):
            audit_log.entries(tmp_path)
            pytest.fail(what)


def test_a_line_that_a_power_cut_left_unfinished_is_named_and_not_built_upon(tmp_path: Path) -> None:
    audit_log.note(tmp_path, "added", number=1)
    with (tmp_path / audit_log.FILE).open("ab") as file:
        file.write(b'{"time": ')
    for look in (audit_log.entries, lambda folder: audit_log.note(folder, "removed")):
        with pytest.raises(DamagedError, match="its last line has no end"):
            look(tmp_path)


def test_many_commands_at_once_make_one_chain(tmp_path: Path) -> None:
    writers = [
        threading.Thread(target=lambda: [audit_log.note(tmp_path, "added") for _ in range(10)]) for _ in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(audit_log.entries(tmp_path)) == 40


def test_a_journal_that_cannot_be_written_stops_the_deed(tmp_path: Path, keyring: Keyring) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / audit_log.FILE).mkdir()
    with pytest.raises(FileError, match=r"journal\.jsonl"):
        Roster.load(folder).add(keyring.place / "aachen" / "site.pub")
    assert not Roster.load(folder).present


def test_changes_of_the_roster_are_in_the_journal_and_refused_ones_are_not(tmp_path: Path, keyring: Keyring) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    roster = Roster.load(folder)
    roster.add(keyring.place / "aachen" / "site.pub")
    roster.quarantine("aachen")
    roster.quarantine("aachen", begins=False)
    roster.remove("aachen")
    with pytest.raises(ConfigError):
        roster.remove("aachen")
    found = audit_log.entries(folder)
    assert [entry["event"] for entry in found] == ["added", "quarantined", "out of quarantine", "removed"]
    assert {entry["name"] for entry in found} == {"aachen"}
    assert found[0]["fingerprint"].startswith("SHA256:")
