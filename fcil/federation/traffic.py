"""What is sent between server and sites, and its bytes: each message is weighed as it is encoded."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from fcil.core.errors import FederationError
from fcil.core.messages import (
    Announcement,
    Broadcast,
    Message,
    Missing,
    ModelParcel,
    ModelState,
    Order,
    Reply,
    encoded_size,
)
from fcil.federation.client import Client, Holding, Job


class RoundTraffic:
    """The mail of one round: it hands out the broadcast and the models that sites ask for, and weighs all of it.

    What is the same for many sites is weighed once.
    """

    def __init__(self, broadcast: Broadcast, models: Mapping[str, ModelState]) -> None:
        self.broadcast = broadcast
        self.models = models
        self.down = 0
        self.up = 0
        self.announcements = 0  # bytes of `up` before the broadcast
        self.uploads = 0  # bytes of `up` that are for the proxy
        self.bystanders = broadcast.for_bystanders()
        self.sizes = {True: encoded_size(broadcast), False: encoded_size(self.bystanders)}
        self._parcel_size = cache(lambda digest: encoded_size(ModelParcel(digest, models[digest])))
        self._missing_size = cache(lambda digests: encoded_size(Missing(digests)))

    def letter(self, order: Order) -> Broadcast:
        """Return the broadcast as the client of an order receives it."""
        return self.broadcast if order.participate else self.bystanders

    def call(self, site: Client, order: Order, holding: Holding) -> Job:
        """Send an order to a site, and then the models that it lacks; return the job that it makes of them."""
        letter = self.letter(order)
        self.down += self.sizes[order.participate]
        answer = site.prepare(letter, order, holding)
        if isinstance(answer, Missing):
            for parcel in self.parcels(answer):
                site.store.receive(parcel)
            answer = site.prepare(letter, order, holding)
        if isinstance(answer, Missing):
            raise FederationError(
                f"client {site.client} asks for models that the round does not name: {answer.digests}"
            )
        return answer

    def parcels(self, missing: Missing) -> list[ModelParcel]:
        """Return the models that a site lacks; a digest that the round does not name is left out."""
        self.up += self._missing_size(missing.digests)
        sent = [digest for digest in missing.digests if digest in self.models]
        self.down += sum(self._parcel_size(digest) for digest in sent)
        return [ModelParcel(digest, self.models[digest]) for digest in sent]

    def announced(self, announcement: Announcement) -> None:
        """Weigh an announcement; having none to make takes no message."""
        if announcement.classes:
            size = encoded_size(announcement)
            self.up += size
            self.announcements += size

    def answered(self, reply: Reply) -> None:
        """Weigh a client's answer: its report, what goes to the proxy, and class ids."""
        parts: list[Message] = [reply.report] if reply.report else []
        if reply.announced:
            parts.append(Announcement(reply.announced))
        uploads = sum(encoded_size(upload) for upload in reply.uploads)
        self.up += sum(encoded_size(part) for part in parts) + uploads
        self.uploads += uploads

    @property
    def phases(self) -> dict[str, tuple[int, int]]:
        """Return the bytes up and down of each phase that had any."""
        found = {
            "announce": (self.announcements, 0),
            "train": (self.up - self.announcements - self.uploads, self.down),
            "proxy": (self.uploads, 0),
        }
        return {phase: weights for phase, weights in found.items() if any(weights)}
