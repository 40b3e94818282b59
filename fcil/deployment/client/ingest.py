"""Ingestion of new files in a site's folder as samples, each for training or for the hold-out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fcil.data.datasets.dataset import Split
from fcil.data.datasets.image import BrokenPictureError, Pixels, decode_as
from fcil.deployment.client.sample_store import SiteIndex
from fcil.deployment.client.scan import ChangingError, FileStat, FoundFile, Tell, find_images, read_content

SETTLED = 1.0  # seconds since the last change of a file; some formats decode before they are complete
PATIENCE = 10.0  # seconds for which a broken file may still be incomplete
NONE = -1  # the sample of a broken file


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
    pixels: Pixels


def ingest(
    register: IndexLookup, data: Path, class_id: Callable[[str], str], tell: Tell, tell_once: Tell
) -> tuple[SiteIndex, Split]:
    """Return the index with the new files of the folder, and the new samples."""
    scan = _Scan(register, data, class_id, tell)
    entries = [entry for entry in find_images(data, tell_once) if not register.recognises(entry)]
    _let_settle(entries)
    for entry in entries:
        scan.read(entry)
    if not scan.seen:
        return register.index, _split((), (), register.index)
    return scan.result()


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
        samples = self.register.samples
        rows = dict(self.register.files)
        for name, (stat, digest) in self.seen.items():
            sample = NONE if digest is None else samples[digest] if digest in samples else new[digest]
            rows[name] = [*stat, sample]
        return tuple(rows), torch.tensor(list(rows.values()), dtype=torch.int64).view(-1, 4)


def _split(fresh: Sequence[NewImage], labels: Sequence[int], index: SiteIndex) -> Split:
    pixels = np.stack([found.pixels for found in fresh]) if fresh else np.empty((0, *index.image_shape), np.uint8)
    return Split(torch.from_numpy(pixels), torch.tensor(labels, dtype=torch.int64))


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
