"""The Flower ClientApp that plays participants: whichever process of Flower's runs it, with what that process has kept.

It knows no client: a job brings the state of the one that it plays, and the answer takes it back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import torch  # noqa: F401 (Flower loads what an app imports, and nothing else)
from flwr.app import ConfigRecord, Context
from flwr.app import Message as Envelope
from flwr.clientapp import ClientApp

from fcil.core.messages import Message, Missing, ModelParcel, ModelState, decode
from fcil.federation.client import Done
from fcil.federation.engines.base import Publication, Recipe, SharedSamples, Worker
from fcil.federation.engines.flower.records import ANSWER, ERRAND, JOB, PROCESS, Errand, Task, pack, unpack

PARTS_KEPT = 8  # by a process, or more while a job needs more at once


class Shelf:
    """What a process has been sent, by digest, most recently used last."""

    def __init__(self) -> None:
        self.parts: dict[str, Message] = {}

    def receive(self, sent: Mapping[str, bytes]) -> None:
        """Keep parts that came with a job."""
        self.parts.update({digest: decode(data, Message) for digest, data in sent.items()})

    def lacks(self, digests: Sequence[str]) -> tuple[str, ...]:
        """Return those of the parts that it does not have."""
        return tuple(digest for digest in digests if digest not in self.parts)

    def use(self, digests: Sequence[str]) -> None:
        """Note that these parts are in use, and drop the oldest others beyond PARTS_KEPT in all."""
        for digest in digests:
            self.parts[digest] = self.parts.pop(digest)
        for digest in list(self.parts)[: -max(PARTS_KEPT, len(digests))]:
            del self.parts[digest]


class Player:
    """A worker of this process, built anew when another run's job comes."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        self.worker: Worker | None = None
        self.built_from = ("", "")  # recipe and digest of the samples

    def play(self, sent: dict[str, bytes]) -> Done | Missing:
        """Return the answer to what was sent, or the parts that have to come with it."""
        errand, task = decode(sent.pop(ERRAND), Errand), sent.pop(JOB)
        self.shelf.receive(sent)
        missing = self.shelf.lacks(errand.parts)
        if missing:
            return Missing(missing)
        self.shelf.use(errand.parts)
        worker = self._worker(errand)
        models = {digest: self._model(part) for digest, part in errand.models.items()}
        order = decode(task, Task)  # only now: the recipe has imported the method
        worker.published = Publication(order.broadcast, models)
        return worker.play(order.job)

    def _worker(self, errand: Errand) -> Worker:
        wanted = (errand.recipe, errand.samples)
        if self.worker is None or self.built_from != wanted:
            shared = self.shelf.parts[errand.samples]
            assert isinstance(shared, SharedSamples)
            self.worker, self.built_from = Worker(Recipe.read(errand.recipe), shared.samples(), 0), wanted
        return self.worker

    def _model(self, part: str) -> ModelState:
        parcel = self.shelf.parts[part]
        assert isinstance(parcel, ModelParcel)
        return parcel.model


client_app = ClientApp()
player = Player()  # one per process


@client_app.train()
def train(message: Envelope, context: Context) -> Envelope:
    """Answer a job with what became of it, or with the parts that are missing."""
    content = pack({ANSWER: player.play(unpack(message.content))})
    content[PROCESS] = ConfigRecord({"id": os.getpid()})
    return Envelope(content=content, reply_to=message)
