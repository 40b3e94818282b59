"""Files that survive a kill and tell of damage: whole or absent, and sealed with a digest that is checked first."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fcil.core.errors import DamagedError, FileError, reason

MAGIC = b"FCILFILE"
SEAL = len(MAGIC) + hashlib.sha256().digest_size  # bytes before the content of a sealed file
DIGEST = "digest"  # key of the seal in a JSON document
PARTIAL = ".part"  # end of a name under which a file is written


def write_atomically(
    path: Path,
    *pieces: bytes,
    former: Path | None = None,
    private: bool = False,
    check: Callable[[Path], object] | None = None,
) -> None:
    """Write a file so that a reader, or a machine after a power cut, finds the old one or the new one, never a part.

    With `former` the old one gets that name; a kill at that very moment leaves it under this name alone. A private file
    is its owner's alone from its first byte on. `check` is given the whole file before it has its name; if it raises,
    nothing stays.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}{PARTIAL}")  # no other writer's
    try:
        try:
            if private:
                partial.unlink(missing_ok=True)  # a file that is there already would keep its mode
            with open(partial, "wb", opener=_open_private if private else None) as file:
                file.writelines(pieces)
                file.flush()
                os.fsync(file.fileno())
            if check is not None:
                check(partial)
            if former is not None and exists(path):
                os.replace(path, former)
            os.replace(partial, path)
        except BaseException:
            if partial.is_file():  # it would keep a full disk full
                partial.unlink()
            raise
        sync(path.parent)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {reason(error)}") from error


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a new folder with its files, whole or not at all; one of this name that is there already is an error."""
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            for name, content in files.items():
                write_atomically(partial / name, content)
            partial.rename(path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)  # it would keep a full disk full
            raise
        sync(path.parent)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {reason(error)}") from error


def point_to(link: Path, name: str) -> None:
    """Let a symbolic link name something beside it; a reader finds the former name or the new one."""
    partial = link.with_name(f".{link.name}.{os.getpid()}{PARTIAL}")
    try:
        partial.unlink(missing_ok=True)
        partial.symlink_to(name)
        os.replace(partial, link)
        sync(link.parent)
    except OSError as error:
        raise FileError(f"{link} cannot be written: {reason(error)}") from error


def write_new(path: Path, content: bytes) -> None:
    """Write a file that is not there yet; one that is, even since a moment ago, is left as it is."""
    try:
        with path.open("xb") as file:
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                path.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise FileError(f"{path} cannot be written: {reason(error)}") from error


def append_durably(path: Path, line: bytes) -> None:
    """Add a line to a file and see it to the disk; if that fails, nothing of it stays."""
    try:
        with path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                while line:
                    line = line[file.write(line) :]
                os.fsync(file.fileno())
            except BaseException:
                with suppress(OSError):
                    file.truncate(size)
                raise
    except OSError as error:
        raise FileError(f"{path} cannot be written: {reason(error)}") from error


def read_bytes(path: Path) -> bytes:
    """Return the content of a file."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise DamagedError(f"{path} is missing") from error
    except OSError as error:
        raise FileError(f"{path} cannot be read: {reason(error)}") from error


def exists(path: Path) -> bool:
    """Say whether there is something of this name."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise FileError(f"{path} cannot be read: {reason(error)}") from error
    return True


def remove_partial(folder: Path) -> None:
    """Remove the partial files of killed writes from a folder in which no process writes."""
    for path in folder.glob(f".*{PARTIAL}"):
        if path.is_file():
            path.unlink()


# --- sealed files -------------------------------------------------------------------------------------------------


def write_sealed(path: Path, content: bytes, former: Path | None = None, private: bool = False) -> str:
    """Write a file as `write_atomically` does, with a digest before its content, and return the digest."""
    digest = hashlib.sha256(content)
    write_atomically(path, MAGIC + digest.digest(), content, former=former, private=private)
    return digest.hexdigest()


def read_sealed(path: Path) -> tuple[memoryview, str]:
    """Return the content of a sealed file and its digest, or raise a DamagedError if they do not belong together."""
    data = memoryview(read_bytes(path))
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise DamagedError(f"{path} is damaged: it begins with {bytes(data[: len(MAGIC)])!r}, not with {MAGIC!r}")
    digest = hashlib.sha256(data[SEAL:]).digest()
    if len(data) < SEAL or digest != data[len(MAGIC) : SEAL]:
        raise DamagedError(f"{path} is damaged: its content does not match its digest")
    return data[SEAL:], digest.hex()


def dump_json(document: Any) -> bytes:
    """Return readable JSON bytes, the same for the same document."""
    return (json.dumps(document, indent=2, sort_keys=False, allow_nan=False) + "\n").encode()


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON document as `write_atomically` does, with a digest of it under its last key."""
    write_atomically(path, seal_json(document))


def seal_json(document: dict[str, Any]) -> bytes:
    """Return a JSON document with a digest of it under its last key, as `read_json` wants it."""
    return dump_json({**document, DIGEST: json_digest(document)})


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON document that `write_json` wrote, or raise a DamagedError if it is not as it was written."""
    try:
        document = json.loads(read_bytes(path))
        if not isinstance(document, dict):
            raise ValueError(f"it is a {type(document).__name__}, not an object")
        found = document.pop(DIGEST, None)
        if found is None:
            raise ValueError(f"it has no {DIGEST}")
        if found != json_digest(document):
            raise ValueError(f"its content does not match its {DIGEST}")
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: {error}") from error
    return document


def json_digest(document: dict[str, Any]) -> str:
    """Return a digest of the values of a JSON document, independent of spaces and the order of keys."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_EXCL, 0o600)


def with_home(path: str) -> str:
    """Return a path as it is, or raise a ValueError if it begins with the home of a user that there is not."""
    try:
        Path(path).expanduser()
    except RuntimeError:
        raise ValueError("a path; there is no such user") from None
    return path


def sync(path: Path) -> None:
    """Wait until the content of a file or a folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
