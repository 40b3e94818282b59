"""The bytes of a round between server and clients: each message counts by its encoded size."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

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


class RoundTraffic:
    """A round's broadcast and models, and the bytes of all that is sent; equal messages are encoded once."""

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

    def broadcast_to(self, order: Order) -> Broadcast:
        """Return the broadcast as the client of an order receives it."""
        return self.broadcast if order.participate else self.bystanders

    def sent(self, order: Order) -> None:
        """Count a broadcast that goes to the client of an order."""
        self.down += self.sizes[order.participate]

    def parcels(self, missing: Missing) -> list[ModelParcel]:
        """Return the models that a client lacks; a digest that the round does not name is left out."""
        self.up += self._missing_size(missing.digests)
        sent = [digest for digest in missing.digests if digest in self.models]
        self.down += sum(self._parcel_size(digest) for digest in sent)
        return [ModelParcel(digest, self.models[digest]) for digest in sent]

    def announced(self, announcement: Announcement) -> None:
        """Count an announcement; a client without new classes sends none."""
        if announcement.classes:
            size = encoded_size(announcement)
            self.up += size
            self.announcements += size

    def answered(self, reply: Reply) -> None:
        """Count a client's reply: its report, its uploads for the proxy, and class ids."""
        parts: list[Message] = [reply.report] if reply.report else []
        if reply.announced:
            parts.append(Announcement(reply.announced))
        uploads = sum(encoded_size(upload) for upload in reply.uploads)
        self.up += sum(encoded_size(part) for part in parts) + uploads
        self.uploads += uploads

    def exchanged(self, up: int, down: int) -> None:
        """Count keys and shares of a masked round."""
        self.up += up
        self.down += down

    @property
    def phases(self) -> dict[str, tuple[int, int]]:
        """Return the bytes up and down of each phase that had any."""
        found = {
            "announce": (self.announcements, 0),
            "train": (self.up - self.announcements - self.uploads, self.down),
            "proxy": (self.uploads, 0),
        }
        return {phase: weights for phase, weights in found.items() if any(weights)}
