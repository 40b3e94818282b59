"""Base of sites and the proxy: it answers the requests of one server under fixed terms."""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from fcil.core.errors import FcilError, FederationError, disk_problem
from fcil.core.event_log import WARNING
from fcil.core.files import exists, read_json, write_json
from fcil.core.messages import Message
from fcil.core.messages.codec import DEFAULT_LIMIT
from fcil.deployment.epoch import check_epoch, when
from fcil.deployment.own_status import OwnStatus
from fcil.deployment.party_limits import PartyLimits, agreeable
from fcil.deployment.party_store import MOST_PARCELS, DiskStore, make_private_folder
from fcil.deployment.terms_in_words import in_words
from fcil.deployment.transport.messages import (
    Answer,
    Epoch,
    EvaluateRequest,
    EvaluationResult,
    ProxyRequest,
    ProxyResult,
    Refusal,
    Request,
    Terms,
    TrainRequest,
    TrainResult,
    decode_message,
    decode_model,
    encode_message,
)
from fcil.experiment.config import differing_keys
from fcil.experiment.run_directory import lock_folder
from fcil.federation.engines.base import Recipe
from fcil.methods import methods

TERMS = "terms.json"
Say = Callable[[str], None]


@dataclass(frozen=True)
class PendingTerms:
    """Terms that nobody has accepted yet: their digest, and their content in words."""

    digest: str
    words: tuple[str, ...]


class Party(ABC):
    """Answers the requests of one server and keeps its state in a folder."""

    kind: ClassVar[str]

    def __init__(
        self,
        folder: Path,
        encoder_seed: int,
        device: str,
        threads: int,
        say: Say,
        limits: PartyLimits | None = None,
        accept: str | None = None,
    ) -> None:
        """Take the limits of the party's owner, and the digest of the terms that the owner accepts, if known."""
        methods()  # their modules define the messages in states and requests
        self.folder = folder
        make_private_folder(folder)
        self.lock = lock_folder(folder)  # before the store, which removes partial files
        try:
            self.store = DiskStore(folder)
        except FcilError:
            self.lock.release()
            raise
        self.own = OwnStatus(folder, self.kind)
        self.broken = False  # after a fault, the next request begins with what is on disk
        self._say = say
        self.encoder_seed = encoder_seed
        self.device = device
        self.threads = threads
        self.limits = limits or PartyLimits()
        self.accepted = accept
        self.pending: PendingTerms | None = None  # that the owner has to accept first
        self.terms: Terms | None = None
        self.joined = False  # since the start, so that it is said once
        self.dismissed = False
        self.leaving = threading.Event()  # ends the present connection after the request under way
        self.request: Request | None = None  # the present one, once its terms are the agreed ones

    @property
    @abstractmethod
    def authority(self) -> Path | None:
        """The certificate of the server's authority; None without TLS."""

    @abstractmethod
    def build(self, recipe: Recipe, backbone: str) -> None:
        """Build this party's half of the method, once the terms are known; `backbone` is the frozen one's digest."""

    @abstractmethod
    def answer(self, request: Request) -> Message:
        """Return the content of the answer to a request under the agreed terms."""

    def say(self, line: str) -> None:
        """Write a line for the owner; where that fails, as on a full disk, the work goes on."""
        with suppress(Exception):
            if line.startswith(WARNING):
                self.own.warn(line.removeprefix(WARNING))
            self._say(line)

    def handle(self, data: bytes, parcels: Mapping[str, bytes]) -> bytes:
        """Return the encoded answer to a request; any error becomes a `Refusal`, and the process goes on."""
        self.request, began = None, time.monotonic()
        answer, failed = self._answered(data, parcels)
        self.own.answered(_round_of(self.request), time.monotonic() - began, len(answer), failed)
        return answer

    def _answered(self, data: bytes, parcels: Mapping[str, bytes]) -> tuple[bytes, bool]:
        """Return the encoded answer to a request, and whether it stands for a failure."""
        try:
            if self.broken:
                self._restart()
            return self._handled(data, parcels), False
        except FederationError as error:  # a fault of the request: the server may know it
            self.say(f"a request is refused: {error}")
            return self._encoded(Refusal(str(error))), True
        except Exception as error:  # a fault here: its text may name files or classes
            self.broken = True
            self.say(f"warning: a request cannot be answered: {type(error).__name__}: {error}; the next one is tried")
            return self._encoded(self.failed(fault(error))), True

    def failed(self, sentence: str) -> Message:
        """Return the answer to the present request after a fault of this party."""
        return Refusal(sentence)

    def _restart(self) -> None:
        """Drop what is in memory, which a fault may have left half-way; the folder is whole after every write."""
        self.store = DiskStore(self.folder)
        self.terms = None
        self.broken = False

    def _handled(self, data: bytes, parcels: Mapping[str, bytes]) -> bytes:
        """Return the encoded answer to a request, which is on disk if it may be asked for again."""
        known = self.store.answered(data) or self.store.evaluation(data)
        if known is not None:
            self.say("the server asks for the last answer again; it is sent again")
            return known
        request = decode_message(data, Request, DEFAULT_LIMIT)
        self._agree(request.terms)
        self.request = request
        if len(parcels) > MOST_PARCELS:  # the store would drop some before they are used
            raise FederationError(
                f"the request comes with {len(parcels)} models; {MOST_PARCELS} are the most that a round needs"
            )
        for digest, parcel in parcels.items():
            if digest not in self.store.held:
                self.store.receive(decode_model(digest, parcel, DEFAULT_LIMIT))
        content = self.answer(request)
        answer = self._encoded(content)
        if len(answer) > self.limits.upload_bytes:
            self.say(
                f"an answer of {len(answer)} bytes is not sent: the limit upload_bytes is {self.limits.upload_bytes}"
            )
            return self._encoded(Refusal("the answer is larger than this party's limit upload_bytes"))
        if isinstance(content, ProxyResult) or (isinstance(content, TrainResult) and content.reply is not None):
            self.store.answer(data, answer)  # not a failure, which may not occur again
        if isinstance(request, EvaluateRequest) and isinstance(content, EvaluationResult):
            self.store.evaluate(request.context.round, data, answer)
        return answer

    def _encoded(self, content: Message) -> bytes:
        return encode_message(Answer(self.store.held, content))

    def _agree(self, terms: Terms) -> None:
        """Accept the terms of the first request, and refuse a request with other terms."""
        if self.terms is None:
            self._begin(terms)
        agreed = self.terms
        assert agreed is not None
        if terms.federation != agreed.federation:
            raise FederationError(
                f"this party's state belongs to the federation {agreed.federation[:8]}, and the server runs "
                f"{terms.federation[:8]}; name another --state for a new federation"
            )
        if terms.recipe != agreed.recipe:
            differing = differing_keys(json.loads(agreed.recipe), json.loads(terms.recipe))
            raise FederationError(f"the server has changed its terms since this party joined: {'; '.join(differing)}")
        if terms.backbone != agreed.backbone:
            raise FederationError("the server has changed its terms since this party joined: another frozen backbone")
        if (terms.epoch.began if terms.epoch else 0) != self.store.epoch:
            self._follow(terms)

    def _follow(self, terms: Terms) -> None:
        """Go on with a server that was restored from a backup, from this party's present state."""
        check_epoch(terms, self.store.epoch, self.authority)
        if self.store.restores >= self.limits.restores:
            raise FederationError(
                f"the server was restored again, and this party's limit restores is {self.limits.restores}"
            )
        assert terms.epoch is not None
        self.begin_epoch(terms.epoch)
        self.say(
            f"warning: the server was restored from a backup and goes on after round {terms.epoch.round}, in an epoch "
            f"that began {when(terms.epoch.began)}; this party goes on from its present state"
        )

    def begin_epoch(self, epoch: Epoch) -> None:
        """Take the present state for the one at which the server goes on."""
        self.store.begin_epoch(epoch.began, epoch.round)

    def _begin(self, terms: Terms) -> None:
        path = self.folder / TERMS
        if exists(path):
            kept = read_json(path)
            agreed = Terms(str(kept["federation"]), str(kept["recipe"]), str(kept.get("backbone", "")))
        else:
            agreed = terms
        recipe = agreeable(agreed, self.limits)
        if not exists(path):
            self._ask_owner(agreed, recipe)
        setting = replace(recipe.setting, secret=self.encoder_seed)
        self.build(replace(recipe, setting=setting, device=self.device, threads=self.threads), agreed.backbone)
        if not exists(path):
            kept = {"federation": agreed.federation, "recipe": agreed.recipe, "backbone": agreed.backbone}
            write_json(path, kept)
        self.terms = agreed
        if not self.joined:
            self.say(f"joined the federation {agreed.federation[:8]}: method {recipe.method}, {TERMS} has its settings")
        self.joined = True

    def _ask_owner(self, terms: Terms, recipe: Recipe) -> None:
        """Refuse terms that the owner has not accepted, and leave, so that the owner can be asked."""
        if terms.digest != self.accepted:
            self.pending = PendingTerms(terms.digest, tuple(in_words(terms, recipe, self.limits)))
            self.dismissed = True
            raise FederationError(f"the owner of this party has not accepted the terms {terms.digest} yet")
        for line in in_words(terms, recipe, self.limits):
            self.say(line)

    def accept(self, digest: str) -> None:
        """Note that the owner accepts terms; the next request begins under them."""
        self.accepted, self.pending, self.dismissed = digest, None, False
        self.leaving.clear()

    def renewing(self) -> bool:
        """Say whether the connection ended because keys are to be read again, and let the next one begin."""
        asked = self.leaving.is_set() and not self.dismissed
        self.leaving.clear()
        return asked

    @property
    def knows_server(self) -> bool:
        """True if this party has taken part before."""
        return exists(self.folder / TERMS)

    def close(self) -> None:
        """Release the folder."""
        self.lock.release()


def _round_of(request: Request | None) -> int | None:
    """Return the round, from 1, that a request asks a party to take part in."""
    if isinstance(request, TrainRequest):
        return request.broadcast.context.round + 1
    return request.context.round + 1 if isinstance(request, ProxyRequest) else None


def fault(error: BaseException) -> str:
    """Return what the server may know of a fault at a party: its cause, and no name of a file or class.

    >>> fault(OSError(28, "No space left on device", "photos/cat/1.png"))
    "this party's disk is full; it goes on once there is room"
    >>> fault(ValueError("cat"))
    "ValueError; this party's own log says more"
    """
    problem = disk_problem(error)
    if problem is not None:
        return (
            f"this party's {problem}; it goes on once {'there is room' if problem.endswith('full') else 'it is well'}"
        )
    return f"{type(error).__name__}; this party's own log says more"
