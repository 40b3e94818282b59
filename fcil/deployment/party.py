"""What sites and the proxy have in common: terms that stay as they were agreed on, and requests answered one by one."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from fcil.core.errors import FcilError, FederationError, reason
from fcil.core.files import exists, read_json, write_json
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
    """Answers the requests of one server, from a folder in which it keeps what it has to remember."""

    def __init__(self, folder: Path, encoder_seed: int, device: str, threads: int, say: Say) -> None:
        methods()  # their files define the messages that states and requests are made of
        self.folder = folder
        make_private_folder(folder)
        self.lock = lock_folder(folder)  # before the store, which tidies the folder
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
        """Build what answers requests, once the terms are known."""

    @abstractmethod
    def answer(self, request: Request) -> Answer:
        """Return the answer to a request under the agreed terms."""

    def handle(self, data: bytes, parcels: Mapping[str, bytes]) -> bytes:
        """Return the answer to a request; whatever is wrong with it, the answer says so and this process goes on."""
        try:
            known = self.store.answered(data)
            if known is not None:
                self.say("the server asks again for the last answer, and gets it again")
                return known
            request = decode_message(data, Request, DEFAULT_LIMIT)
            self._agree(request.terms)
            if len(parcels) > MOST_PARCELS:  # the store keeps no more of them until the next round
                raise FederationError(f"the request comes with {len(parcels)} models, more than any round needs")
            for digest, parcel in parcels.items():
                if digest not in self.store.held:
                    self.store.receive(decode_model(digest, parcel, DEFAULT_LIMIT))
            answer = self.answer(request)
        except FederationError as error:  # what is wrong with the request
            self.say(f"a request is refused: {error}")
            return encode_message(Refusal(self.store.held, str(error)))
        except Exception as error:  # what is wrong here is nobody else's business: it may name files or classes
            self.say(f"a request cannot be answered: {type(error).__name__}: {error}")
            return encode_message(Refusal(self.store.held, f"{type(error).__name__}; this party's own log says more"))
        content = encode_message(replace(answer, held=self.store.held))
        if isinstance(answer, ProxyResult) or (isinstance(answer, TrainResult) and answer.reply is not None):
            self.store.answer(data, content)  # a failure may not come again
        return content

    def _agree(self, terms: Terms) -> None:
        """Take the terms of the first request, and hold the server to them in every other one."""
        if self.terms is None:
            self._begin(terms)
        agreed = self.terms
        assert agreed is not None
        if terms.federation != agreed.federation:
            raise FederationError(
                f"this party's state belongs to the federation {agreed.federation[:8]}, and the server plays "
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
        """Say whether this party has taken part before."""
        return exists(self.folder / TERMS)

    def close(self) -> None:
        """Let go of the folder."""
        self.lock.release()
