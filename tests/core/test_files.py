from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from fcil.core.errors import DamagedError, FileError
from fcil.core.files import (
    MAGIC,
    SEAL,
    append_durably,
    dump_json,
    exists,
    read_bytes,
    read_json,
    read_sealed,
    remove_partial,
    write_atomically,
    write_json,
    write_sealed,
)


def refuse(*_: object) -> NoReturn:
    raise OSError(28, "No space left on device")


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_written_file_has_its_bytes_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_atomically(path, b"first")
    write_atomically(path, b"sec", b"ond")
    assert path.read_bytes() == b"second"
    assert names(tmp_path) == ["result.json"]


@pytest.mark.parametrize("failing", ["os.fsync", "os.replace"])
def test_a_write_that_fails_leaves_the_old_file_whole_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "result.json"
    write_atomically(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(failing, refuse)
        with pytest.raises(FileError, match=f"{path} cannot be written: No space left on device"):
            write_atomically(path, b"new, and much longer")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["result.json"]


def test_a_file_reaches_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def noting(name: str, function: Callable[..., None]) -> Callable[..., None]:
        def noted(*arguments: Any) -> None:
            steps.append(name)
            function(*arguments)

        return noted

    monkeypatch.setattr(os, "fsync", noting("fsync", os.fsync))
    monkeypatch.setattr(os, "replace", noting("replace", os.replace))
    write_atomically(tmp_path / "result.json", b"data")
    assert steps == ["fsync", "replace", "fsync"]


def test_two_who_write_the_same_file_at_once_never_leave_a_part(tmp_path: Path) -> None:
    path, failed = tmp_path / "page.html", []
    contents = [letter * 300_000 for letter in (b"a", b"b")]

    def write(content: bytes) -> None:
        try:
            for _ in range(40):
                write_atomically(path, content)
        except FileError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert not path.exists() or path.read_bytes() in contents
    assert failed == []
    assert list(tmp_path.iterdir()) == [path]


def test_the_former_file_keeps_its_bytes_under_another_name(tmp_path: Path) -> None:
    path, former = tmp_path / "new", tmp_path / "former"
    for content in (b"one", b"two", b"three"):
        write_atomically(path, content, former=former)
    assert (path.read_bytes(), former.read_bytes()) == (b"three", b"two")


@pytest.mark.parametrize("left_behind", [False, True])
def test_a_private_file_is_its_owners_alone(tmp_path: Path, left_behind: bool) -> None:
    path = tmp_path / "key"
    partial = tmp_path / f".key.{os.getpid()}-{threading.get_ident()}.part"
    if left_behind:  # by a write that was killed, of a process with the same number
        partial.touch(mode=0o644)
    write_sealed(path, b"secret", private=True)
    assert path.stat().st_mode & 0o777 == 0o600
    assert bytes(read_sealed(path)[0]) == b"secret"


LIMITED = """
import resource, sys
from pathlib import Path
from fcil.core.errors import FileError
from fcil.core.files import append_durably, write_atomically
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
for action in (write_atomically, append_durably):
    try:
        action(Path(sys.argv[1]), b"x" * 5000)
    except FileError as error:
        print(error)
"""


def test_a_file_that_outgrows_what_there_is_room_for_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"old\n")
    done = subprocess.run([sys.executable, "-c", LIMITED, path], capture_output=True, text=True, check=True)
    assert done.stdout == f"{path} cannot be written: File too large\n" * 2
    assert path.read_bytes() == b"old\n"
    assert names(tmp_path) == ["records.jsonl"]


def test_a_full_device_gets_a_sentence() -> None:
    with pytest.raises(FileError, match="/dev/full cannot be written: No space left on device"):
        append_durably(Path("/dev/full"), b"line\n")


def test_a_directory_in_a_file_s_place_gets_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.mkdir()
    with pytest.raises(FileError, match=f"{path} cannot be written: Is a directory"):
        write_atomically(path, b"data")
    with pytest.raises(FileError, match=f"{path} cannot be read: Is a directory"):
        read_bytes(path)
    assert names(tmp_path) == ["summary.json"]


def test_a_name_that_is_too_long_gets_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 300)
    for action in (exists, read_bytes, read_json):
        with pytest.raises(FileError, match="cannot be read: File name too long"):
            action(path)
    with pytest.raises(FileError, match="cannot be written: File name too long"):
        write_atomically(path, b"data")


def test_what_killed_writes_left_is_removed(tmp_path: Path) -> None:
    for name in (".checkpoint.fcil.part", "checkpoint.fcil", ".lock"):
        (tmp_path / name).touch()
    remove_partial(tmp_path)
    assert names(tmp_path) == [".lock", "checkpoint.fcil"]


def test_a_sealed_file_reads_back_and_every_flipped_bit_shows(tmp_path: Path) -> None:
    path = tmp_path / "sealed.fcil"
    digest = write_sealed(path, b"content")
    assert read_sealed(path) == (b"content", digest)
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        with pytest.raises(DamagedError, match=f"{path} is damaged"):
            read_sealed(path)


def test_every_cut_of_a_sealed_file_shows(tmp_path: Path) -> None:
    path = tmp_path / "sealed.fcil"
    write_sealed(path, b"")
    whole = path.read_bytes()
    assert len(whole) == SEAL
    for end in range(SEAL):
        path.write_bytes(whole[:end])
        with pytest.raises(DamagedError, match=f"{path} is damaged"):
            read_sealed(path)
    path.unlink()
    with pytest.raises(DamagedError, match=f"{path} is missing"):
        read_sealed(path)


def test_a_file_of_another_kind_is_not_called_sealed(tmp_path: Path) -> None:
    path = tmp_path / "other.fcil"
    path.write_bytes(b"PK" + bytes(100))
    with pytest.raises(DamagedError) as caught:
        read_sealed(path)
    assert str(caught.value).endswith(f"not with {MAGIC!r}")


def test_json_keeps_the_order_of_its_keys_and_refuses_what_is_no_number() -> None:
    assert dump_json({"b": 1, "a": [2]}) == b'{\n  "b": 1,\n  "a": [\n    2\n  ]\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump_json({"loss": float("nan")})


def test_a_sealed_document_reads_back_whatever_its_spaces(tmp_path: Path) -> None:
    path, document = tmp_path / "summary.json", {"b": [1, 2.5, None], "a": {"x": "\u00fc"}}
    write_json(path, document)
    assert read_json(path) == document
    content = json.loads(path.read_bytes())
    assert list(content) == ["b", "a", "digest"]
    path.write_text(json.dumps(content, sort_keys=True))
    assert read_json(path) == document


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "it has no digest"),
        ("[]", "it is a list, not an object"),
        ('{"a": 1, "digest": "0"}', "its content does not match its digest"),
        ('{"a": NaN, "digest": "0"}', ""),
        ('{"a": 1', ""),
        ("\xff", ""),
        ("[" * 100_000, ""),
    ],
    ids=["empty", "list", "other", "nan", "cut", "bytes", "deep"],
)
def test_a_document_that_was_not_written_so_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DamagedError, match=f"{path} is damaged: {said}"):
        read_json(path)
