"""What a site or the proxy keeps on its disk: its state after two rounds, the last answer, and a few models."""

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
MOST_PARCELS = 16  # models that come with a request; a round has its own, its teachers and the method's


@dataclass(frozen=True)
class StoreIndex(Message):
    """The state that the latest round left, the one before it, and the models in the order of their last use."""

    latest: Stamped | None = None
    former: Stamped | None = None
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class LastAnswer(Message):
    """An answer, and the digest of the request that it answers."""

    request: str
    answer: Bytes


class DiskStore:
    """A `ClientStore` in a folder; whatever it is told lies on the disk before it returns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_private_folder(folder / MODELS)
        self._tidy()
        self._stamps = _read(folder / STAMPS, StoreIndex) or StoreIndex()
        present = {path.stem for path in (folder / MODELS).glob("*.fcil")}
        self._held = tuple(digest for digest in self._stamps.models if digest in present)
        self._cache: dict[str, ModelState] = {}
        self._fresh: tuple[str, ...] = ()  # received and not yet used, the newest last
        for stray in present.difference(self._held):
            self._remove(stray)
        kept = _read(folder / ANSWER, LastAnswer)
        self._answered = kept.request if kept else None

    @property
    def latest(self) -> Stamped | None:
        """Return the state that the latest round left."""
        return self._stamps.latest

    @property
    def former(self) -> Stamped | None:
        """Return the state before the latest round."""
        return self._stamps.former

    @property
    def held(self) -> tuple[str, ...]:
        """Return the models that it has."""
        return (*self._held, *self._fresh)

    def before(self, round: int) -> Stamped | None:
        return state_before(round, self._stamps.latest, self._stamps.former)

    def keep(self, stamped: Stamped) -> None:
        former = self.before(stamped.round)
        self._write(StoreIndex(stamped, former, self._held))

    def lacks(self, digests: Sequence[str]) -> tuple[str, ...]:
        return tuple(digest for digest in digests if digest not in self.held)

    def receive(self, parcel: ModelParcel) -> None:
        """Take in a model that it lacked; of those that no round has used since, the oldest has to make room."""
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
                raise FileError(f"{path} is missing or damaged; the server is asked for it the next time")
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
        """Return the answer to a request that was answered last, if it was this one."""
        if self._answered is None or self._answered != _digest(request):
            return None
        kept = _read(self.folder / ANSWER, LastAnswer)
        return as_bytes(kept.answer) if kept is not None and kept.request == self._answered else None

    def answer(self, request: bytes, answer: bytes) -> None:
        """Keep the answer to a request, in case it gets lost."""
        digest = _digest(request)
        write_sealed(self.folder / ANSWER, encode(LastAnswer(digest, as_tensor(answer))), private=True)
        self._answered = digest

    def _write(self, stamps: StoreIndex) -> None:
        write_sealed(self.folder / STAMPS, encode(stamps), private=True)
        self._stamps = stamps

    def _tidy(self) -> None:
        """Remove what a kill in the middle of a write has left, for instance half of a model."""
        try:
            for folder in (self.folder, self.folder / MODELS):
                remove_partial(folder)
        except OSError as error:
            raise FileError(f"{self.folder} cannot be tidied: {reason(error)}") from error

    def _remove(self, digest: str) -> None:
        self._cache.pop(digest, None)
        try:
            (self.folder / MODELS / f"{digest}.fcil").unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise FileError(f"{self.folder / MODELS / digest}.fcil cannot be removed: {reason(error)}") from error


def make_private_folder(folder: Path) -> None:
    """Make a folder that is its owner's alone, unless it is there."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True, mode=0o700)
    except OSError as error:
        raise FileError(f"{folder} cannot be made a folder: {reason(error)}") from error


def _digest(request: bytes) -> str:
    return hashlib.sha256(request).hexdigest()


def _read(path: Path, expected: type[M]) -> M | None:
    """Return the message in a sealed file, if there is one."""
    return read_message(path, expected) if exists(path) else None


__all__ = ["MOST_PARCELS", "DiskStore", "StoreIndex", "make_private_folder"]
