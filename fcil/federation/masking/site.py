"""A participant's side of masked sums; what it knows of a round stays in memory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import torch

from fcil.core.errors import FederationError
from fcil.federation.masking import primitives
from fcil.federation.masking.fixed_point import MOST_PARTICIPANTS
from fcil.federation.masking.messages import (
    BOX,
    LEAST,
    KeyMessage,
    Masks,
    Partners,
    Session,
    Unmask,
    Unmasked,
    Voucher,
    as_bytes,
    as_key,
    as_rows,
    fewest_alive,
    row,
)
from fcil.federation.masking.primitives import KEY
from fcil.federation.masking.shares import SHARE, split


@dataclass
class _Round:
    """A round at one participant: its secrets and, once they have come, the shares of its partners."""

    session: Session
    number: int
    message: KeyMessage
    private: bytes = field(repr=False)
    seed: bytes = field(repr=False)
    partners: Partners | None = None
    masks: Masks | None = None
    spent: bool = False  # whether a report with these masks has been made
    shares: list[bytes] = field(default_factory=list, repr=False)  # both shares of each partner
    asked: Unmask | None = None


class MaskingSite:
    """Makes keys, masks and shares for one participant, and refuses what would reveal a report.

    `secret` is shared by all sites and never known to the server. The site's lasting key is new with each process.
    """

    def __init__(self, federation: str, secret: bytes, least: int = LEAST) -> None:
        self.federation, self.secret, self.least = federation, secret, least
        self._private = primitives.new_key()
        key = primitives.public_key(self._private)
        self.voucher = Voucher(as_key(key), as_key(primitives.vouch(secret, federation.encode(), key)))
        self._round: _Round | None = None

    def is_named(self, session: Session, number: int) -> bool:
        """Return whether a round names the key that this site has now."""
        return number in session.participants and row(session.keys, session.place(number)) == as_bytes(self.voucher.key)

    def strangers(self, session: Session) -> tuple[int, ...]:
        """Return the participants whose key no site of this federation vouches for."""
        return tuple(
            number
            for place, number in enumerate(session.participants)
            if not primitives.is_vouched(
                row(session.proofs, place), self.secret, self.federation.encode(), row(session.keys, place)
            )
        )

    def message(self, session: Session, number: int) -> KeyMessage:
        """Return the first answer in a round: a key and sealed shares; the same one for the same round."""
        open_round = self._round
        if open_round is not None and open_round.session.digest == session.digest and open_round.number == number:
            return open_round.message
        self._check(session, number)
        if open_round is not None and open_round.masks is not None and session.round <= open_round.session.round:
            raise FederationError(
                f"round {session.round + 1} was masked with other partners or another model; a site opens a round once"
            )
        private, seed = primitives.new_key(), primitives.new_key()
        self._round = _Round(session, number, self._written(session, number, private, seed), private, seed)
        return self._round.message

    def _check(self, session: Session, number: int) -> None:
        """Refuse a round with too few participants or with a key that no site vouches for."""
        count = len(session.numbers)
        if session.federation != self.federation:
            raise FederationError("the masked round belongs to another federation")
        if count < self.least:
            raise FederationError(
                f"a sum over {count} participants is asked for; this site takes at least {self.least}"
            )
        if count > MOST_PARTICIPANTS:
            raise FederationError(f"a masked round has {MOST_PARTICIPANTS} participants at most, not {count}")
        keys = [row(session.keys, place) for place in range(count)]
        if len(set(keys)) < count:
            raise FederationError("the masked round names one key for two participants")
        for stranger in self.strangers(session):
            raise FederationError(
                f"the key of participant {stranger} is unknown: no site of this federation vouches for it"
            )
        if not self.is_named(session, number):
            raise FederationError(f"the masked round has another key for this site, participant {number}")

    def _written(self, session: Session, number: int, private: bytes, seed: bytes) -> KeyMessage:
        key, places = primitives.public_key(private), range(1, len(session.numbers) + 1)
        of_key, of_seed = (split(secret, session.threshold, places) for secret in (private, seed))
        boxes, digests = [], []
        for place, receiver in enumerate(session.participants):
            parts = (of_key[place + 1], of_seed[place + 1])
            marks = b"".join(hashlib.sha256(part).digest() for part in parts)
            about = _about(session, number, receiver, key, marks)
            boxes.append(primitives.seal(b"".join(parts), self._channel(session, place), about))
            digests.append(marks)
        mark = hashlib.sha256(seed).digest()
        return KeyMessage(session.digest, as_key(key), as_key(mark), as_rows(boxes, BOX), as_rows(digests, 2 * KEY))

    def _channel(self, session: Session, place: int) -> bytes:
        """Return the key of boxes between this site and another one in this round."""
        shared = primitives.agree(self._private, row(session.keys, place))
        return primitives.derive(shared, b"fcil shares", session.digest.encode())

    def masks(self, partners: Partners) -> Masks:
        """Return the masks of this site's report, once the messages of all participants have come."""
        found = self._opened(partners.session)
        if found.spent:
            raise FederationError("this site has made its report of the masked round; masks are used once")
        if found.masks is not None:
            assert found.partners is not None
            if not _same(partners, found.partners):
                raise FederationError("the masked round comes with other keys than before")
            return found.masks
        session, own = found.session, found.session.place(found.number)
        if len(partners.keys) != len(session.numbers):
            raise FederationError("the masked round has messages of other participants than it began with")
        if row(partners.keys, own) != as_bytes(found.message.key):
            raise FederationError("the masked round comes with another key of this site than it has sent")
        found.shares = [self._share(found, partners, place) for place in range(len(session.numbers))]
        keys = [row(partners.keys, place) for place in range(len(session.numbers))]
        added = [own_mask(session, found.seed)]
        subtracted: list[bytes] = []
        for place, key in enumerate(keys):
            if place != own:
                (added if own < place else subtracted).append(pair_mask(session, found.private, key, own, place))
        found.partners, found.masks = partners, Masks.of(added, subtracted)
        return found.masks

    def spend(self, digest: str) -> None:
        """Note that a report with the masks of a round has been made: no second one may have them."""
        self._opened(digest).spent = True

    def is_spent(self, digest: str) -> bool:
        """Return whether a report with the masks of a round has been made."""
        return self._round is not None and self._round.session.digest == digest and self._round.spent

    def session(self, digest: str) -> tuple[Session, int]:
        """Return an open round, and this site's number in it."""
        found = self._opened(digest)
        return found.session, found.number

    def _share(self, found: _Round, partners: Partners, place: int) -> bytes:
        """Return the shares in a partner's box, which must be those that it has told the server of."""
        session, marks = found.session, row(partners.digests, place)
        about = _about(session, session.participants[place], found.number, row(partners.keys, place), marks)
        try:
            content = primitives.unseal(row(partners.boxes, place), self._channel(session, place), about)
        except FederationError as error:
            raise FederationError(f"participant {session.participants[place]}: {error}") from error
        parts = content[:SHARE], content[SHARE:]
        if b"".join(hashlib.sha256(part).digest() for part in parts) != marks:
            raise FederationError(f"participant {session.participants[place]} has sent a share that is not its own")
        return content

    def shares(self, request: Unmask) -> Unmasked:
        """Return this site's share for each participant, or refuse what would tell more than one sum."""
        found = self._opened(request.session)
        if found.masks is None:
            raise FederationError("shares are asked for before this site has sent a report")
        if found.asked is not None and not _same(request, found.asked):
            raise FederationError("shares were asked for before with other drop-outs; a site unmasks a round once")
        alive, dropped = set(request.alive.tolist()), set(request.dropped.tolist())
        both = sorted(alive & dropped)
        if both:
            raise FederationError(f"participant {both[0]} is named both as alive and as dropped out")
        if alive | dropped != set(found.session.participants):
            raise FederationError("the unmasking names other participants than the round began with")
        if found.number not in alive:
            raise FederationError("this site has reported and is named as dropped out")
        fewest = fewest_alive(len(found.session.numbers), self.least)
        if len(alive) < fewest:
            raise FederationError(f"{len(alive)} participants have reported; this site unmasks sums over {fewest} on")
        found.asked = request
        pairs = zip(found.session.participants, found.shares, strict=True)
        return Unmasked(
            found.session.digest,
            as_rows([both[SHARE:] if number in alive else both[:SHARE] for number, both in pairs], SHARE),
        )

    def _opened(self, digest: str) -> _Round:
        if self._round is None or self._round.session.digest != digest:
            raise FederationError("this site does not know the masked round: it was restarted, or the round is over")
        return self._round


def own_mask(session: Session, seed: bytes) -> bytes:
    """Return the seed of the stream that hides a report even if all masks between sites are known."""
    return primitives.derive(seed, b"fcil own mask", session.digest.encode())


def pair_mask(session: Session, private: bytes, public: bytes, one: int, other: int) -> bytes:
    """Return the seed of the stream that one of two sites adds and the other subtracts; both are named by place."""
    pair = f"{min(one, other)} {max(one, other)}".encode()
    return primitives.derive(primitives.agree(private, public), b"fcil pair mask", session.digest.encode(), pair)


def _about(session: Session, sender: int, receiver: int, key: bytes, marks: bytes) -> bytes:
    """Return the circumstances that a box of shares is bound to."""
    return f"fcil box {session.digest} {sender} {receiver} ".encode() + key + marks


def _same(one: Partners | Unmask, other: Partners | Unmask) -> bool:
    return all(
        torch.equal(mine, getattr(other, name)) if isinstance(mine, torch.Tensor) else mine == getattr(other, name)
        for name, mine in vars(one).items()
    )
