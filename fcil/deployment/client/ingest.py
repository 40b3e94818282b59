"""Ingestion of new files in a site's folder as samples, each for training or for the hold-out."""

from __future__ import annotations

import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fcil.core.errors import FederationError
from fcil.data.columns import Columns
from fcil.data.datasets.dataset import Split
from fcil.data.datasets.image import BrokenPictureError, Pixels, decode_as
from fcil.deployment.client.class_consent import ClassConsent
from fcil.deployment.client.rows import find_tables, rows_of_tables
from fcil.deployment.client.sample_store import SiteIndex
from fcil.deployment.client.scan import ChangingError, FileStat, FoundFile, Tell, find_images, read_content

SETTLED = 1.0  # seconds since the last change of a file; some formats decode before they are complete
PATIENCE = 10.0  # seconds for which a broken file may still be incomplete
Values = np.ndarray[tuple[int, ...], np.dtype[np.float32]]  # of a row
NONE = -1  # the sample of a broken file
TABLE, ROWS = b"", 0  # the digest of a file with rows, and its sample


class BusyError(FederationError):
    """The new files of a folder are not all read yet."""


class FolderReading:
    """The reading of a folder's new files, in a thread of its own: a round does not wait for thousands of them.

    Nothing of it counts before all of it does, so that a class arrives as a whole.
    """

    def __init__(self, read: Callable[[Callable[[int, int], None]], tuple[SiteIndex, Split]]) -> None:
        self.done, self.total = 0, 0
        self._read = read
        self._found: tuple[SiteIndex, Split] | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found = self._read(self._note)
        except BaseException as error:  # raised where the result is asked for
            self._error = error

    def _note(self, done: int, total: int) -> None:
        self.done, self.total = done, total

    def finished(self, seconds: float) -> bool:
        """Wait for the end so long, and return whether it has come."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> tuple[SiteIndex, Split]:
        """Return the index with the new files and the new samples, once finished."""
        if self._error is not None:
            raise self._error
        assert self._found is not None
        return self._found


class IndexLookup:
    """An index with lookups: files by name, samples by digest."""

    def __init__(self, index: SiteIndex) -> None:
        self.index = index
        self.files: dict[str, list[int]] = dict(zip(index.files, index.stats.tolist(), strict=True))
        self.samples = {digest.tobytes(): sample for sample, digest in enumerate(index.digests.numpy())}

    def recognises(self, entry: FoundFile) -> bool:
        """Return True if a file was read before and has not changed; of a broken one, all times must be the same."""
        row = self.files.get(entry.name)
        if row is None:
            return False
        length = 2 if row[-1] != NONE else 3
        return row[:length] == list(entry.stat[:length])


@dataclass(frozen=True)
class NewImage:
    """An image whose content is new."""

    identity: str  # of its class
    class_name: str
    name: str
    digest: bytes
    pixels: Pixels | Values


def ingest(
    register: IndexLookup,
    data: Path,
    class_id: Callable[[str], str],
    tell: Tell,
    tell_once: Tell,
    consent: ClassConsent | None = None,
    note: Callable[[int, int], None] = lambda done, total: None,
    columns: Columns | None = None,
) -> tuple[SiteIndex, Split]:
    """Return the index with the new files of the folder, and the new samples; with `columns` they are rows."""
    scan, consent = _Scan(register, data, class_id, tell), consent or ClassConsent()
    if columns is not None:
        scan.read_tables(columns, consent, tell_once)
        return scan.result() if scan.seen or scan.fresh else (register.index, _split((), (), register.index))
    entries = [entry for entry in find_images(data, tell_once) if not register.recognises(entry)]
    refused = scan.refused({entry.class_name for entry in entries}, consent, tell_once)
    entries = [entry for entry in entries if entry.class_name not in refused]
    _let_settle(entries)
    for done, entry in enumerate(entries):
        note(done, len(entries))
        scan.read(entry)
    scan.drop_small_classes(consent.least, tell_once)
    if not scan.seen:
        return register.index, _split((), (), register.index)
    return scan.result()


def count_new(register: IndexLookup, data: Path, class_id: Callable[[str], str], consent: ClassConsent) -> int:
    """Return the new files of classes, and of folders that may become one."""
    new = [entry for entry in find_images(data, lambda _: None) if not register.recognises(entry)]
    counts = Counter(entry.class_name for entry in new)
    return sum(
        count
        for name, count in counts.items()
        if class_id(name) in register.index.ids or (count >= consent.least and consent.allows(name))
    )


def _let_settle(entries: Sequence[FoundFile]) -> None:
    """Wait until the youngest file is old enough; a file that changes meanwhile is found changed when it is read."""
    now = time.time()
    ages = (now - entry.stat.modified / 1e9 for entry in entries)
    youngest = min((age for age in ages if age >= 0), default=SETTLED)
    if youngest < SETTLED:
        time.sleep(SETTLED - youngest)


class _Scan:
    """The files found in one scan of the folder so far."""

    def __init__(self, register: IndexLookup, data: Path, class_id: Callable[[str], str], tell: Tell) -> None:
        self.register = register
        self.data = data
        self.class_id = class_id
        self.tell = tell
        self.seen: dict[str, tuple[FileStat, bytes | None]] = {}  # files with their digests; None: broken
        self.fresh: dict[bytes, NewImage] = {}

    def read(self, entry: FoundFile) -> None:
        """Read a file as a new image, a known one or a broken one."""
        path = self.data / entry.name
        try:
            content = read_content(path, entry)
            digest = sha256(content).digest()
            if digest in self.fresh or digest in self.register.samples:
                self._check_class(entry, digest)
            else:
                pixels = decode_as(content, self.register.index.image_shape)
                identity = self.class_id(entry.class_name)
                self.fresh[digest] = NewImage(identity, entry.class_name, entry.name, digest, pixels)
        except ChangingError:
            return
        except BrokenPictureError as error:
            if 0 <= time.time() - entry.stat.modified / 1e9 < PATIENCE:
                return
            self.tell(f"{path} is left out: {error}")
            self.seen[entry.name] = entry.stat, None
            return
        self.seen[entry.name] = entry.stat, digest

    def refused(self, names: set[str], consent: ClassConsent, tell_once: Tell) -> set[str]:
        """Return those of some classes that are new and that nobody has approved, with a warning for each."""
        known = self.register.index.ids
        found = {name for name in names if self.class_id(name) not in known and not consent.allows(name)}
        for name in sorted(found):
            tell_once(
                f"{self.data / name} is no class yet: nobody has approved it; "
                f"`fcil federation classes approve {shlex.quote(name)} --classes {consent.file}` does"
            )
        return found

    def read_tables(self, columns: Columns, consent: ClassConsent, tell_once: Tell) -> None:
        """Read all tables if one is new or has changed; their new rows are new samples.

        Tables are read again while rows wait for their class.
        """
        tables = find_tables(self.data, tell_once)
        new = [entry for entry in tables if not self.register.recognises(entry)]
        if not new:
            return
        _let_settle(new)
        rows, stats = rows_of_tables(self.data, tables, columns, tell_once)
        rows = [row for row in rows if row.digest not in self.register.samples]
        refused = self.refused({row.class_name for row in rows}, consent, tell_once)
        for row in rows:
            if row.class_name not in refused:
                identity = self.class_id(row.class_name)
                self.fresh[row.digest] = NewImage(identity, row.class_name, row.name, row.digest, row.values)
        waiting = len(rows)
        self.drop_small_classes(consent.least, tell_once)
        if len(self.fresh) == waiting:
            self.seen = {name: (stat, TABLE) for name, stat in stats.items() if stat is not None}

    def drop_small_classes(self, least: int, tell_once: Tell) -> None:
        """Leave out the files of new classes with too few images, until there are more."""
        counts = Counter(found.identity for found in self.fresh.values())
        small = {name: count for name, count in counts.items() if name not in self.register.index.ids and count < least}
        dropped = {digest: found for digest, found in self.fresh.items() if found.identity in small}
        for found in dropped.values():
            tell_once(
                f"{self.data / found.class_name} is no class yet: it has {small[found.identity]} of the {least} images "
                "that --least-images asks for"
            )
        self.fresh = {digest: found for digest, found in self.fresh.items() if digest not in dropped}
        self.seen = {name: seen for name, seen in self.seen.items() if seen[1] not in dropped}

    def _check_class(self, entry: FoundFile, digest: bytes) -> None:
        """Warn if known content is found under another class."""
        index = self.register.index
        if digest in self.fresh:
            identity, origin = self.fresh[digest].identity, self.fresh[digest].name
        else:
            sample = self.register.samples[digest]
            identity, origin = index.ids[int(index.labels[sample])], index.origins[sample]
        if self.class_id(entry.class_name) != identity:
            first, second = self.data / origin, self.data / entry.name
            self.tell(f"{second} is left out: it has the same content as {first}, which is of another class")

    def result(self) -> tuple[SiteIndex, Split]:
        """Return the index with the files found, and the new samples."""
        index = self.register.index
        names = dict(zip(index.ids, index.class_names, strict=True))
        for found in self.fresh.values():
            names.setdefault(found.identity, found.class_name)
        places = {identity: label for label, identity in enumerate(names)}
        fresh = sorted(self.fresh.values(), key=lambda found: (places[found.identity], found.digest))
        split = _split(fresh, [places[found.identity] for found in fresh], index)
        files, stats = self._files({found.digest: len(index.labels) + row for row, found in enumerate(fresh)})
        return replace(
            index,
            class_names=tuple(names.values()),
            ids=tuple(names),
            starts=(*index.starts, len(index.labels)) if fresh else index.starts,
            origins=(*index.origins, *(found.name for found in fresh)),
            digests=torch.cat([index.digests, _digests(fresh)]),
            labels=torch.cat([index.labels, split.labels]),
            held_out=torch.cat([index.held_out, _draw(index, split.labels)]),
            files=files,
            stats=stats,
        ), split

    def _files(self, new: dict[bytes, int]) -> tuple[tuple[str, ...], Tensor]:
        """Return the names of all files ever read, and the stat values and the sample of each."""
        rows = dict(self.register.files)
        for name, (stat, digest) in self.seen.items():
            rows[name] = [*stat, self._sample(digest, new)]
        return tuple(rows), torch.tensor(list(rows.values()), dtype=torch.int64).view(-1, 4)

    def _sample(self, digest: bytes | None, new: dict[bytes, int]) -> int:
        """Return the sample of a file, given its digest and the new samples by theirs."""
        if digest is None or digest == TABLE:
            return NONE if digest is None else ROWS
        return self.register.samples[digest] if digest in self.register.samples else new[digest]


def _split(fresh: Sequence[NewImage], labels: Sequence[int], index: SiteIndex) -> Split:
    ids = torch.tensor(labels, dtype=torch.int64)
    if not fresh:
        return Split(torch.empty(0, *index.image_shape, dtype=index.dtype), ids)
    return Split(torch.from_numpy(np.stack([found.pixels for found in fresh])), ids)


def _digests(fresh: Sequence[NewImage]) -> Tensor:
    joined = b"".join(found.digest for found in fresh)
    return torch.from_numpy(np.frombuffer(joined, np.uint8).copy()).view(-1, 32)


def _draw(index: SiteIndex, labels: Tensor) -> Tensor:
    """Return a mask of the new samples to hold out: the first of each class, in the order of their digests."""
    return torch.tensor(list(_drawn(index, labels)), dtype=torch.bool)


def _drawn(index: SiteIndex, labels: Tensor) -> Iterator[bool]:
    for label in torch.unique(labels).tolist():
        new = int((labels == label).sum())
        former = index.labels == label
        wanted = held_out_of(int(former.sum()) + new, index.hold_out) - int((former & index.held_out).sum())
        yield from (row < wanted for row in range(new))


def held_out_of(files: int, fraction: float) -> int:
    """Return how many files of a class are held out.

    >>> [held_out_of(files, 0.1) for files in (0, 1, 2, 14, 16, 100)], held_out_of(100, 0)
    ([0, 0, 1, 1, 2, 10], 0)
    """
    return max(1, round(fraction * files)) if files > 1 and fraction else 0
