"""The server's side of masked sums: it forwards key messages, and opens the sum of the reports that came."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

import torch

from fcil.core.errors import FederationError
from fcil.federation.masking import primitives
from fcil.federation.masking.messages import (
    BOX,
    KeyMessage,
    Masks,
    Partners,
    Session,
    Unmask,
    Unmasked,
    as_bytes,
    as_rows,
    row,
)
from fcil.federation.masking.primitives import KEY
from fcil.federation.masking.shares import SHARE, join
from fcil.federation.masking.site import own_mask, pair_mask


class MaskingServer:
    """One masked round at the server: key messages and their forwarding, then shares and the masks of the sum."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.messages: dict[int, KeyMessage] = {}
        self.asked: Unmask | None = None
        self.shares: dict[int, Unmasked] = {}

    def take_message(self, number: int, message: KeyMessage) -> None:
        """Take in a participant's key message."""
        count = len(self.session.numbers)
        self.session.place(number)
        if message.session != self.session.digest or len(message.boxes) != count or len(message.digests) != count:
            raise FederationError("it answers another masked round")
        self.messages[number] = message

    @property
    def silent(self) -> tuple[int, ...]:
        """Return the participants without a message."""
        return tuple(number for number in self.session.participants if number not in self.messages)

    def partners(self, number: int) -> Partners:
        """Return the messages of all participants, as far as they concern one of them."""
        place, messages = self.session.place(number), [self.messages[each] for each in self.session.participants]
        return Partners(
            self.session.digest,
            as_rows([as_bytes(message.key) for message in messages], KEY),
            as_rows([row(message.boxes, place) for message in messages], BOX),
            as_rows([row(message.digests, place) for message in messages], 2 * KEY),
        )

    def ask(self, alive: Collection[int]) -> Unmask:
        """Return the question for shares, once it is known who has reported."""
        if len(alive) < self.session.threshold:
            raise FederationError(
                f"{len(alive)} of {len(self.session.numbers)} participants have reported; a masked sum needs "
                f"{self.session.threshold}"
            )
        numbers = [
            torch.tensor([each for each in self.session.participants if (each in alive) == wanted], dtype=torch.int64)
            for wanted in (True, False)
        ]
        self.asked = Unmask(self.session.digest, *numbers)
        return self.asked

    def take_shares(self, number: int, answer: Unmasked) -> None:
        """Take in a participant's shares; one that is not the share it was given is refused."""
        assert self.asked is not None
        participants, place = self.session.participants, self.session.place(number)
        if answer.session != self.session.digest or len(answer.shares) != len(participants):
            raise FederationError("it sends the shares of another masked round")
        alive = set(self.asked.alive.tolist())
        for owner, other in enumerate(participants):
            marks = row(self.messages[other].digests, place)
            wanted = marks[KEY:] if other in alive else marks[:KEY]
            if hashlib.sha256(row(answer.shares, owner)).digest() != wanted:
                raise FederationError(f"it sends a wrong share of participant {other}")
        self.shares[number] = answer

    def masks(self) -> Masks:
        """Return the masks that are in the sum of all reports, to be taken out of it."""
        assert self.asked is not None
        session, participants = self.session, self.session.participants
        if len(self.shares) < session.threshold:
            raise FederationError(f"{len(self.shares)} participants help to unmask the sum; {session.threshold} must")
        added = [own_mask(session, self._seed(each)) for each in self.asked.alive.tolist()]
        subtracted: list[bytes] = []
        for other in self.asked.dropped.tolist():
            private, there = self._private(other), participants.index(other)
            for each in self.asked.alive.tolist():
                here, key = participants.index(each), as_bytes(self.messages[each].key)
                mask = pair_mask(session, private, key, here, there)
                (added if here < there else subtracted).append(mask)
        return Masks.of(added, subtracted)

    def _seed(self, number: int) -> bytes:
        seed = self._joined(number)
        if seed is None or hashlib.sha256(seed).digest() != as_bytes(self.messages[number].seed):
            raise FederationError(f"participant {number} has dealt shares that give no seed")
        return seed

    def _private(self, number: int) -> bytes:
        private = self._joined(number)
        if private is None or primitives.public_key(private) != as_bytes(self.messages[number].key):
            raise FederationError(f"participant {number} has dealt shares that give no key")
        return private

    def _joined(self, number: int) -> bytes | None:
        owner = self.session.place(number)
        return join(_first(self.session, self.shares, owner))


def _first(session: Session, shares: Mapping[int, Unmasked], owner: int) -> dict[int, bytes]:
    """Return as many shares of an owner's secret as are needed, by place from 1."""
    chosen = sorted(shares)[: session.threshold]
    found = {session.place(number) + 1: row(shares[number].shares, owner) for number in chosen}
    assert all(len(share) == SHARE for share in found.values())
    return found
