"""Base of sites and the proxy: it answers the requests of one server under fixed terms."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from fcil.core.errors import FcilError, FederationError, reason
from fcil.core.files import exists, read_json, write_json
from fcil.core.messages import Message
from fcil.core.messages.codec import DEFAULT_LIMIT
from fcil.deployment.party_store import MOST_PARCELS, DiskStore, make_private_folder
from fcil.deployment.transport.messages import (
    Answer,
    ProxyResult,
    Refusal,
    Request,
    Terms,
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


class Party(ABC):
    """Answers the requests of one server and keeps its state in a folder."""

    def __init__(self, folder: Path, encoder_seed: int, device: str, threads: int, say: Say) -> None:
        methods()  # their modules define the messages in states and requests
        self.folder = folder
        make_private_folder(folder)
        self.lock = lock_folder(folder)  # before the store, which removes partial files
        try:
            self.store = DiskStore(folder)
        except FcilError:
            self.lock.release()
            raise
        self.say = say
        self.encoder_seed = encoder_seed
        self.device = device
        self.threads = threads
        self.terms: Terms | None = None
        self.dismissed = False

    @abstractmethod
    def build(self, recipe: Recipe) -> None:
        """Build this party's half of the method, once the terms are known."""

    @abstractmethod
    def answer(self, request: Request) -> Message:
        """Return the content of the answer to a request under the agreed terms."""

    def handle(self, data: bytes, parcels: Mapping[str, bytes]) -> bytes:
        """Return the encoded answer to a request; an error becomes a `Refusal`, and the process goes on."""
        try:
            known = self.store.answered(data)
            if known is not None:
                self.say("the server asks for the last answer again; it is sent again")
                return known
            request = decode_message(data, Request, DEFAULT_LIMIT)
            self._agree(request.terms)
            if len(parcels) > MOST_PARCELS:  # the store would drop some before they are used
                raise FederationError(
                    f"the request comes with {len(parcels)} models; {MOST_PARCELS} are the most that a round needs"
                )
            for digest, parcel in parcels.items():
                if digest not in self.store.held:
                    self.store.receive(decode_model(digest, parcel, DEFAULT_LIMIT))
            content = self.answer(request)
        except FederationError as error:  # a fault of the request: the server may know it
            self.say(f"a request is refused: {error}")
            return self._encoded(Refusal(str(error)))
        except Exception as error:  # a fault here: its text may name files or classes
            self.say(f"a request cannot be answered: {type(error).__name__}: {error}")
            return self._encoded(Refusal(f"{type(error).__name__}; this party's own log says more"))
        answer = self._encoded(content)
        if isinstance(content, ProxyResult) or (isinstance(content, TrainResult) and content.reply is not None):
            self.store.answer(data, answer)  # not a failure, which may not occur again
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

    def _begin(self, terms: Terms) -> None:
        path = self.folder / TERMS
        if exists(path):
            kept = read_json(path)
            agreed = Terms(str(kept["federation"]), str(kept["recipe"]))
        else:
            agreed = terms
        try:
            recipe = Recipe.read(agreed.recipe, import_modules=False)
        except (ValidationError, KeyError, TypeError, ValueError) as error:
            raise FederationError(f"the server's terms cannot be used here: {reason(error)}") from error
        setting = replace(recipe.setting, secret=self.encoder_seed)
        self.build(replace(recipe, setting=setting, device=self.device, threads=self.threads))
        if not exists(path):
            write_json(path, {"federation": agreed.federation, "recipe": agreed.recipe})
        self.terms = agreed
        self.say(f"joined the federation {agreed.federation[:8]}: method {recipe.method}, {TERMS} has its settings")

    @property
    def knows_server(self) -> bool:
        """True if this party has taken part before."""
        return exists(self.folder / TERMS)

    def close(self) -> None:
        """Release the folder."""
        self.lock.release()
