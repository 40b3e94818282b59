"""State of a site or the proxy on disk: the state after each of the last two rounds, the last answers, and models."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeVar

import torch
from torch import Tensor

from fcil.core.errors import DamagedError, FileError, reason
from fcil.core.files import exists, remove_partial, write_sealed
from fcil.core.messages import Message, ModelParcel, ModelState, Shape, encode
from fcil.deployment.transport.messages import Bytes, as_bytes, as_tensor
from fcil.experiment.checkpoint import read_message
from fcil.federation.client import MODELS_HELD, Stamped, state_before

M = TypeVar("M", bound=Message)
STAMPS, ANSWER, EVALUATED, MODELS = "state.fcil", "answer.fcil", "evaluated.fcil", "models"
MOST_PARCELS = 16  # models beside a request: the global one, the teachers and the method's own


@dataclass(frozen=True)
class BegunRound(Message):
    """A round that a site has begun: the model and the classes it was sent, and, if it trains, on which order.

    It is on disk before the site trains, so that a round is never answered for a second model.
    """

    round: int
    model: str  # digest
    classes: int
    catalogue: str  # digest of the class ids
    blocks: tuple[int, ...]
    rounds_since_growth: int
    task: str = ""  # digest of the broadcast that it trains on; empty for a bystander
    nonce: int = 0  # of its answer
    session: str = ""  # digest of the masked round in which it reports


@dataclass(frozen=True)
class Withdrawal(Message):
    """Samples that a site takes back in rounds after this one; a round that was begun before is repeated as it was."""

    after: int
    samples: Annotated[Tensor, Shape(("samples",), torch.int64)]


@dataclass(frozen=True)
class StoreIndex(Message):
    """The last two states, the last two rounds begun, and the digests of models, most recently used first."""

    latest: Stamped | None = None
    former: Stamped | None = None
    models: tuple[str, ...] = ()
    begun: tuple[BegunRound, ...] = ()  # the latest last
    withdrawals: tuple[Withdrawal, ...] = ()
    epoch: int = 0  # when the server's present epoch began
    restores: int = 0  # epochs so far


@dataclass(frozen=True)
class LastAnswer(Message):
    """The last answer, and the digest of its request."""

    request: str
    answer: Bytes


@dataclass(frozen=True)
class LastEvaluation(Message):
    """The last evaluation, for the model of which round it was, and how many there were in all."""

    round: int
    count: int
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
        self.evaluated = _read(folder / EVALUATED, LastEvaluation)

    @property
    def latest(self) -> Stamped | None:
        """Return the state after the latest round."""
        return self._stamps.latest

    @property
    def former(self) -> Stamped | None:
        """Return the state before the latest round."""
        return self._stamps.former

    @property
    def epoch(self) -> int:
        """Return when the server's present epoch began; 0 before the first restore."""
        return self._stamps.epoch

    @property
    def restores(self) -> int:
        """Return how often the server was restored."""
        return self._stamps.restores

    @property
    def held(self) -> tuple[str, ...]:
        """Return the digests of the stored models."""
        return (*self._held, *self._fresh)

    def before(self, round: int) -> Stamped | None:
        return state_before(round, self._stamps.latest, self._stamps.former)

    def keep(self, stamped: Stamped) -> None:
        former = self.before(stamped.round)
        self._write(replace(self._stamps, latest=stamped, former=former, models=self._held))

    def revise(self, change: Callable[[Message], Message]) -> None:
        """Change what is in both states; each stays the one of its round."""
        stamps = self._stamps
        latest, former = (kept and replace(kept, state=change(kept.state)) for kept in (stamps.latest, stamps.former))
        self._write(replace(stamps, latest=latest, former=former, models=self._held))

    def begun(self, round: int) -> BegunRound | None:
        """Return the record of a round that was begun."""
        return next((each for each in self._stamps.begun if each.round == round), None)

    def begun_before(self, round: int) -> BegunRound | None:
        """Return the newest round that was begun before this one."""
        return next((each for each in reversed(self._stamps.begun) if each.round < round), None)

    @property
    def last_begun(self) -> BegunRound | None:
        """Return the latest round that was begun."""
        return self._stamps.begun[-1] if self._stamps.begun else None

    def withdraw(self, samples: Tensor) -> None:
        """Record that samples are taken back from the next round on."""
        rounds = [each.round for each in (*self._stamps.begun, self.latest) if each is not None]
        made = Withdrawal(max(rounds, default=-1), samples)
        self._write(replace(self._stamps, models=self._held, withdrawals=(*self._stamps.withdrawals, made)))

    def withdrawn(self, round: int) -> Tensor:
        """Return the samples that are taken back in a round, or were before it."""
        found = [each.samples for each in self._stamps.withdrawals if each.after < round]
        return torch.cat([torch.empty(0, dtype=torch.int64), *found])

    def begin(self, begun: BegunRound) -> None:
        """Record that a round is begun, replacing its former record; the last two rounds are kept."""
        known = {each.round: each for each in (*self._stamps.begun, begun)}
        kept = tuple(known[number] for number in sorted(known)[-2:])
        self._write(replace(self._stamps, models=self._held, begun=kept))

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
        self._write(replace(self._stamps, models=kept))
        self._held, self._fresh = kept, ()
        for digest in dropped:
            self._remove(digest)

    def begin_epoch(self, began: int, round: int) -> None:
        """Take the present state for the one before a round, which is the next; the count of evaluations goes on."""
        if self.evaluated is not None:
            self._keep_evaluation(replace(self.evaluated, round=min(self.evaluated.round, round), request=""))
        latest = self.latest and replace(self.latest, round=round - 1)
        stamps = replace(self._stamps, latest=latest, former=None, models=self._held, begun=())
        self._write(replace(stamps, epoch=began, restores=self.restores + 1))

    def answered(self, request: bytes) -> bytes | None:
        """Return the stored answer if this was the last request answered, else None."""
        if self._answered is None or self._answered != _digest(request):
            return None
        return self.last_answer

    @property
    def last_answer(self) -> bytes | None:
        """Return the stored answer to the last request that was answered, if it is the one of this store."""
        kept = _read(self.folder / ANSWER, LastAnswer)
        return as_bytes(kept.answer) if kept is not None and kept.request == self._answered else None

    def answer(self, request: bytes, answer: bytes) -> None:
        """Store the answer to a request, in case it is lost on its way."""
        digest = _digest(request)
        write_sealed(self.folder / ANSWER, encode(LastAnswer(digest, as_tensor(answer))), private=True)
        self._answered = digest

    def evaluation(self, request: bytes) -> bytes | None:
        """Return the stored answer if this was the last evaluation asked for, else None."""
        kept = self.evaluated
        return as_bytes(kept.answer) if kept is not None and kept.request == _digest(request) else None

    def evaluate(self, round: int, request: bytes, answer: bytes) -> None:
        """Store the answer to an evaluation, and count it."""
        count = self.evaluated.count + 1 if self.evaluated else 1
        self._keep_evaluation(LastEvaluation(round, count, _digest(request), as_tensor(answer)))

    def _keep_evaluation(self, made: LastEvaluation) -> None:
        write_sealed(self.folder / EVALUATED, encode(made), private=True)
        self.evaluated = made

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


__all__ = ["MOST_PARCELS", "BegunRound", "DiskStore", "LastEvaluation", "StoreIndex", "make_private_folder"]
