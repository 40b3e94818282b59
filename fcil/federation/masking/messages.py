"""The messages of a masked round: key messages and shares, partners' keys, and unmasking."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from fcil.core.errors import FederationError
from fcil.core.messages import Broadcast, Message, Shape, encode
from fcil.federation.masking.primitives import KEY, NONCE, TAG
from fcil.federation.masking.shares import SHARE

LEAST = 3  # participants in every sum, unless a site asks for more
BOX = NONCE + 2 * SHARE + TAG  # bytes of the sealed shares of one sender for one receiver
Numbers = Annotated[Tensor, Shape(("parties",), torch.int64)]
Keys = Annotated[Tensor, Shape(("parties", KEY), torch.uint8)]
Boxes = Annotated[Tensor, Shape(("parties", BOX), torch.uint8)]
Digests = Annotated[Tensor, Shape(("parties", 2 * KEY), torch.uint8)]  # of both shares
Key = Annotated[Tensor, Shape((KEY,), torch.uint8)]


def as_rows(rows: Iterable[bytes], width: int) -> Tensor:
    """Return byte strings of one length as the rows of a tensor."""
    found = b"".join(rows)
    return torch.from_numpy(np.frombuffer(bytearray(found), np.uint8).reshape(-1, width))


def row(tensor: Tensor, place: int) -> bytes:
    """Return one row as bytes."""
    return tensor[place].numpy().tobytes()


def as_key(content: bytes) -> Tensor:
    """Return a key or a digest as a tensor."""
    return as_rows([content], KEY)[0]


def as_bytes(tensor: Tensor) -> bytes:
    """Return the bytes of a tensor."""
    return tensor.numpy().tobytes()


def least_in_sum(min_participants: int) -> int:
    """Return the participants that every sum has, by federation.min_participants."""
    return max(LEAST, min_participants)


def threshold_of(participants: int) -> int:
    """Return how many shares open a secret: two thirds of the participants, rounded up."""
    return -(-2 * participants // 3)


def fewest_alive(participants: int, least: int) -> int:
    """Return how many reports a sum must have for sites to help unmask it, so that no sum of fewer than `least` opens.

    A server may lie to each site differently about who dropped out. Each dropped site's key takes `threshold_of` sites,
    and each site reveals the keys of at most (participants - alive) others, so at most the floor of participants x
    (participants - alive) / threshold keys can be had; the masks between all other sites stay.
    """
    threshold = threshold_of(participants)
    for alive in range(max(threshold, least), participants + 1):
        if participants - participants * (participants - alive) // threshold >= least:
            return alive
    return participants + 1  # never


def digest_of(broadcast: Broadcast) -> str:
    """Return a name for all that participants are sent, so that none of them is sent something else."""
    return hashlib.sha256(encode(broadcast)).hexdigest()


@dataclass(frozen=True)
class Voucher(Message):
    """A participant's lasting public key, and the proof that an owner of the consortium's secret made it."""

    key: Key
    proof: Key


@dataclass(frozen=True)
class Session(Message):
    """One round of masked sums: its circumstances and its participants, ascending, with their vouched keys."""

    federation: str  # and its terms, where sites agree on some
    round: int
    sent: str  # digest of all that participants are sent: the model, the catalogue and more
    numbers: Numbers
    keys: Keys
    proofs: Keys

    def __post_init__(self) -> None:
        numbers = self.numbers.tolist()
        if numbers != sorted(set(numbers)) or len(self.keys) != len(numbers) or len(self.proofs) != len(numbers):
            raise ValueError("a masked round names each participant once, ascending, with a key")

    @classmethod
    def of(cls, federation: str, round: int, sent: str, vouchers: Mapping[int, Voucher]) -> Session:
        """Return the session of these participants."""
        numbers = sorted(vouchers)
        keys, proofs = ([as_bytes(getattr(vouchers[each], what)) for each in numbers] for what in ("key", "proof"))
        there = torch.tensor(numbers, dtype=torch.int64)
        return cls(federation, round, sent, there, as_rows(keys, KEY), as_rows(proofs, KEY))

    @cached_property
    def digest(self) -> str:
        """Return a name for all circumstances together; every key of the round depends on it."""
        content = [self.federation, self.round, self.sent, self.numbers.tolist(), self.keys.tolist()]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def participants(self) -> tuple[int, ...]:
        """Return the numbers of the participants."""
        return tuple(self.numbers.tolist())

    @property
    def threshold(self) -> int:
        """Return how many shares open a secret."""
        return threshold_of(len(self.numbers))

    def place(self, number: int) -> int:
        """Return the place of a participant in the lists of the round."""
        if number not in self.participants:
            raise FederationError(f"{number} is no participant of the masked round")
        return self.participants.index(number)


@dataclass(frozen=True)
class KeyMessage(Message):
    """A participant's first answer: its key of the round, and for each participant sealed shares and their digests."""

    session: str
    key: Key
    seed: Key  # digest of the seed of its own mask
    boxes: Boxes
    digests: Digests


@dataclass(frozen=True)
class Partners(Message):
    """The parts of all key messages that concern one receiver."""

    session: str
    keys: Keys
    boxes: Boxes
    digests: Digests


@dataclass(frozen=True)
class Masks(Message):
    """Seeds of the masks that are added to a report and of those that are subtracted from it."""

    added: Annotated[Tensor, Shape(("added", KEY), torch.uint8)]
    subtracted: Annotated[Tensor, Shape(("subtracted", KEY), torch.uint8)]

    @classmethod
    def of(cls, added: Sequence[bytes], subtracted: Sequence[bytes]) -> Masks:
        """Return the masks of these seeds."""
        return cls(as_rows(added, KEY), as_rows(subtracted, KEY))


@dataclass(frozen=True)
class Unmask(Message):
    """The question for shares: of the own mask of each that has reported, and of the key of each that has not."""

    session: str
    alive: Annotated[Tensor, Shape(("alive",), torch.int64)]
    dropped: Annotated[Tensor, Shape(("dropped",), torch.int64)]


@dataclass(frozen=True)
class Unmasked(Message):
    """A participant's shares, one for each participant, in their order."""

    session: str
    shares: Annotated[Tensor, Shape(("parties", SHARE), torch.uint8)]
