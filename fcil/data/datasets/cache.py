"""On-disk cache of decoded images, memory-mapped: a folder of uint8 arrays per data set, with checksums.

The folder's name is a hash of everything its contents depend on: path, names, sizes and times of the files, image size
and options. It is written under another name, synced and renamed, so that it is whole or absent; a lock lets one
process decode while others wait for the result. Opening compares sizes and times with the recorded ones, and hashes
files that differ.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fcil.core.errors import DataError
from fcil.core.files import sync
from fcil.core.lock import locked
from fcil.data.datasets.dataset import Source, Split
from fcil.data.datasets.decode import Progress, decode_collection, images_file, labels_file
from fcil.data.datasets.manifest import Origin
from fcil.data.datasets.search_path import cache_folder

PARTS = ("train", "test")
FACTS, CHECKSUMS = "facts.json", "checksums.json"
FILES = {FACTS, *(file(part) for part in PARTS for file in (images_file, labels_file))}
FORMAT = 2  # of folder and decoding, a part of the key; 2: photos are turned upright
NAMED = 3  # broken images that a warning names


def load_decoded(origin: Origin, skip_broken: bool, progress: Progress | None = None) -> Source:
    """Return the decoded data set, from the cache where it is there and whole; else decode it into the cache.

    A cache that cannot be written costs a warning: the images then lie in a temporary file for this process alone.
    """
    folder = _folder(origin, skip_broken)
    source = _opened(folder)
    if source is not None:
        return source
    try:
        with locked(folder):
            source = _opened(folder)  # by another process, while this one waited
            if source is None:
                partial = folder.with_name(f"{folder.name}.part")
                shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
                partial.mkdir()
                try:
                    _write(partial, origin, skip_broken, progress)
                    shutil.rmtree(folder, ignore_errors=True)
                    partial.rename(folder)
                    sync(folder.parent)
                finally:
                    shutil.rmtree(partial, ignore_errors=True)
                source = _opened(folder)
    except OSError as error:
        return _load_uncached(origin, skip_broken, progress, f"{folder.parent} cannot be written to ({error})")
    if source is None:
        raise DataError(f"{folder} was damaged as soon as it was written; is the disk sound?")
    return source


def is_decoded(origin: Origin, skip_broken: bool) -> bool:
    """Say whether the cache holds the data set."""
    return _opened(_folder(origin, skip_broken)) is not None


def _folder(origin: Origin, skip_broken: bool) -> Path:
    return cache_folder() / "decoded" / _key(origin, skip_broken)


def _load_uncached(origin: Origin, skip_broken: bool, progress: Progress | None, reason: str) -> Source:
    try:
        with tempfile.TemporaryDirectory(prefix="fcil-") as folder:
            _write(Path(folder), origin, skip_broken, progress)
            source = _opened(Path(folder))  # what is mapped stays readable after its name is gone
    except OSError as error:
        raise DataError(f"{reason}, and neither can {tempfile.gettempdir()} ({error}); make room in one") from error
    assert source is not None
    return replace(source, warnings=(*source.warnings, f"{reason}, so {origin.name} is decoded anew at each start"))


def _key(origin: Origin, skip_broken: bool) -> str:
    """Return a name that depends on all that the decoded images depend on.

    The place of the files is a part of it: archives unpacked with fixed times have equal names, sizes and times.
    """
    facts = [FORMAT, origin.name, str(origin.root.resolve()), origin.size, origin.options, skip_broken]
    total = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for path in origin.files:
        line = (path.relative_to(origin.root).as_posix(), *_stamp(path))
        total.update(repr(line).encode())
    return f"{origin.name}-{total.hexdigest()[:32]}"


def _stamp(path: Path) -> tuple[int, int]:
    """Return size and time of a file; both are -1 if the data lists the file but it is missing."""
    try:
        status = path.stat()
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns


def _write(folder: Path, origin: Origin, skip_broken: bool, progress: Progress | None) -> None:
    """Decode a collection into a folder, with facts and checksums, and bring it to the disk."""
    collection = origin.read()
    skipped = decode_collection(collection, folder, origin.size, skip_broken, progress)
    facts: dict[str, Any] = {"name": origin.name, "class_names": collection.class_names, "skipped": skipped}
    source = _source(folder, facts)
    facts |= {"digest": source.digest, "mean": source.mean, "deviation": source.deviation}
    (folder / FACTS).write_text(json.dumps(facts), "utf-8")
    _note(folder, {name: _noted(folder / name, _checksum(folder / name)) for name in FILES})
    for path in (*folder.iterdir(), folder):
        sync(path)


def _opened(folder: Path) -> Source | None:
    """Return the content of a folder, or None unless it is whole."""
    try:
        noted: dict[str, dict[str, Any]] = json.loads((folder / CHECKSUMS).read_text("utf-8"))
        found = {name: _noted(folder / name, noted[name]["sha256"]) for name in FILES}
        touched = [name for name in FILES if found[name] != noted[name]]
        if any(_checksum(folder / name) != noted[name]["sha256"] for name in touched):
            return None
        if touched:
            with suppress(OSError):  # a cache that is only read is hashed again next time
                _note(folder, found)
        facts = json.loads((folder / FACTS).read_text("utf-8"))
        source = _source(folder, facts)
        known = {"digest": facts["digest"], "mean": tuple(facts["mean"]), "deviation": tuple(facts["deviation"])}
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError, DataError):
        return None
    source.__dict__.update(known)  # computed once, when the images were decoded
    return source


def _source(folder: Path, facts: dict[str, Any]) -> Source:
    train, test = (
        Split(_mapped(folder / images_file(part)), torch.from_numpy(np.load(folder / labels_file(part))))
        for part in PARTS
    )
    return Source(facts["name"], train, test, tuple(facts["class_names"]), skipped_sentence(facts["skipped"]))


def skipped_sentence(names: list[str], what: str = "image") -> tuple[str, ...]:
    """Return a warning that names some of the broken images or rows, if there are any."""
    if not names:
        return ()
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return (f"{len(names)} broken {what}{'s' if len(names) > 1 else ''} left out: {', '.join(names[:NAMED])}{more}",)


def _mapped(path: Path) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nothing writes to images
        return torch.from_numpy(np.load(path, mmap_mode="r"))


def _noted(path: Path, checksum: str) -> dict[str, Any]:
    size, time = _stamp(path)
    return {"sha256": checksum, "size": size, "mtime_ns": time}


def _note(folder: Path, checksums: dict[str, dict[str, Any]]) -> None:
    partial = folder / f".{CHECKSUMS}.{os.getpid()}"
    partial.write_text(json.dumps(checksums, indent=1, sort_keys=True), "utf-8")
    os.replace(partial, folder / CHECKSUMS)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
