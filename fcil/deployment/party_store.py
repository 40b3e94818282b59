"""State of a site or the proxy on disk: the state after each of the last two rounds, the last answer, and models."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fcil.core.errors import DamagedError, FileError, reason
from fcil.core.files import exists, remove_partial, write_sealed
from fcil.core.messages import Message, ModelParcel, ModelState, encode
from fcil.deployment.transport.messages import Bytes, as_bytes, as_tensor
from fcil.experiment.checkpoint import read_message
from fcil.federation.client import MODELS_HELD, Stamped, state_before

M = TypeVar("M", bound=Message)
STAMPS, ANSWER, MODELS = "state.fcil", "answer.fcil", "models"
MOST_PARCELS = 16  # models beside a request: the global one, the teachers and the method's own


@dataclass(frozen=True)
class StoreIndex(Message):
    """The states after the last two rounds, and the digests of the models, most recently used first."""

    latest: Stamped | None = None
    former: Stamped | None = None
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class LastAnswer(Message):
    """The last answer, and the digest of its request."""

    request: str
    answer: Bytes


class DiskStore:
    """A `ClientStore` in a folder; every method that changes it returns once the change is on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_private_folder(folder / MODELS)
        self._tidy()
        self._stamps = _read(folder / STAMPS, StoreIndex) or StoreIndex()
        present = {path.stem for path in (folder / MODELS).glob("*.fcil")}
        self._held = tuple(digest for digest in self._stamps.models if digest in present)
        self._cache: dict[str, ModelState] = {}
        self._fresh: tuple[str, ...] = ()  # received since the last `use`, the newest last
        for stray in present.difference(self._held):
            self._remove(stray)
        kept = _read(folder / ANSWER, LastAnswer)
        self._answered = kept.request if kept else None

    @property
    def latest(self) -> Stamped | None:
        """Return the state after the latest round."""
        return self._stamps.latest

    @property
    def former(self) -> Stamped | None:
        """Return the state before the latest round."""
        return self._stamps.former

    @property
    def held(self) -> tuple[str, ...]:
        """Return the digests of the stored models."""
        return (*self._held, *self._fresh)

    def before(self, round: int) -> Stamped | None:
        return state_before(round, self._stamps.latest, self._stamps.former)

    def keep(self, stamped: Stamped) -> None:
        former = self.before(stamped.round)
        self._write(StoreIndex(stamped, former, self._held))

    def lacks(self, digests: Sequence[str]) -> tuple[str, ...]:
        return tuple(digest for digest in digests if digest not in self.held)

    def receive(self, parcel: ModelParcel) -> None:
        """Store a received model; at most `MOST_PARCELS` unused ones are kept, the newest."""
        make_private_folder(self.folder / MODELS)
        write_sealed(self.folder / MODELS / f"{parcel.digest}.fcil", encode(parcel), private=True)
        self._cache[parcel.digest] = parcel.model
        fresh = (*self._fresh, parcel.digest)
        self._fresh = fresh[-MOST_PARCELS:]
        for digest in fresh[:-MOST_PARCELS]:
            self._remove(digest)

    def model(self, digest: str) -> ModelState:
        if digest not in self._cache:
            path = self.folder / MODELS / f"{digest}.fcil"
            try:
                found = _read(path, ModelParcel)
            except DamagedError:
                found = None
            if found is None:
                self._held = tuple(held for held in self._held if held != digest)
                raise FileError(f"{path} is missing or damaged; the next request asks the server for it")
            self._cache[digest] = found.model
        return self._cache[digest]

    def use(self, digests: Sequence[str]) -> None:
        kept = tuple(dict.fromkeys((*digests, *self.held)))[: max(MODELS_HELD, len(digests))]
        dropped = set(self.held).difference(kept)
        self._held, self._fresh = kept, ()
        self._write(StoreIndex(self._stamps.latest, self._stamps.former, kept))
        for digest in dropped:
            self._remove(digest)

    def answered(self, request: bytes) -> bytes | None:
        """Return the stored answer if this was the last request answered, else None."""
        if self._answered is None or self._answered != _digest(request):
            return None
        kept = _read(self.folder / ANSWER, LastAnswer)
        return as_bytes(kept.answer) if kept is not None and kept.request == self._answered else None

    def answer(self, request: bytes, answer: bytes) -> None:
        """Store the answer to a request, in case it is lost on its way."""
        digest = _digest(request)
        write_sealed(self.folder / ANSWER, encode(LastAnswer(digest, as_tensor(answer))), private=True)
        self._answered = digest

    def _write(self, stamps: StoreIndex) -> None:
        write_sealed(self.folder / STAMPS, encode(stamps), private=True)
        self._stamps = stamps

    def _tidy(self) -> None:
        """Remove partial files that a kill left."""
        try:
            for folder in (self.folder, self.folder / MODELS):
                remove_partial(folder)
        except OSError as error:
            raise FileError(f"{self.folder} cannot be cleaned up: {reason(error)}") from error

    def _remove(self, digest: str) -> None:
        self._cache.pop(digest, None)
        try:
            (self.folder / MODELS / f"{digest}.fcil").unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise FileError(f"{self.folder / MODELS / digest}.fcil cannot be removed: {reason(error)}") from error


def make_private_folder(folder: Path) -> None:
    """Make a folder that only its owner may read, unless it exists."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True, mode=0o700)
    except OSError as error:
        raise FileError(f"{folder} cannot be made a folder: {reason(error)}") from error


def _digest(request: bytes) -> str:
    return hashlib.sha256(request).hexdigest()


def _read(path: Path, expected: type[M]) -> M | None:
    """Return the message in a sealed file, or None if the file does not exist."""
    return read_message(path, expected) if exists(path) else None


__all__ = ["MOST_PARCELS", "DiskStore", "StoreIndex", "make_private_folder"]
