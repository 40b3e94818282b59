"""Messages between the server and the other parties of a real federation: requests of the server, and answers.

On the wire, a message follows a line of plain text that names the protocol and the release of its sender. So a release
that cannot read the message can still say that releases differ.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

import fcil
from fcil.core.errors import FederationError, one_line
from fcil.core.messages import (
    Broadcast,
    CodecError,
    Failure,
    Message,
    ModelParcel,
    ModelState,
    Order,
    Reply,
    RoundContext,
    Shape,
    Teachers,
    decode,
    encode,
    model_digest,
)
from fcil.federation.masking.messages import KeyMessage, Partners, Session, Unmask, Voucher

OLDEST, PROTOCOL = 4, 5  # a later protocol adds kinds of requests and changes none; a party is asked for what it knows
MOST_RELEASES = 1_000_000
LINE = 100  # bytes of the first line at most
SPOKEN = re.compile(rb"fcil protocol ([0-9]{1,4})-([0-9]{1,4}) release [!-~]+")
# Largest headers of messages in bytes; 100,000 class ids take 3.5 MB. A box has the ids of one site. The proxy's answer
# has the ids of all sites, and a hostile site can fill a box with invented ones. The server's requests have the whole
# catalogue, in which hostile ids are up to 20 times as long as others, and the boxes of all sites.
BOX_HEADER, ANSWER_HEADER, REQUEST_HEADER = 4 << 20, 16 << 20, 256 << 20
Bytes = Annotated[Tensor, Shape(("bytes",), torch.uint8)]
Retired = dict[str, str]  # ids of classes -> the class that each became part of, or nothing if it was withdrawn
M = TypeVar("M", bound=Message)


def as_tensor(data: bytes) -> Tensor:
    """Return bytes as a tensor, the only form in which a message holds them."""
    return torch.from_numpy(np.frombuffer(bytearray(data), np.uint8))


def as_bytes(tensor: Tensor) -> bytes:
    """Return the bytes of such a tensor."""
    return tensor.numpy().tobytes()


# --- terms and teachers --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Epoch(Message):
    """A new beginning of a federation whose server was restored from a backup, signed with the server's key.

    Without TLS, on one machine, certificate and signature are empty.
    """

    began: int  # seconds since 1970; epochs follow each other in time
    round: int  # finished rounds in the backup
    certificate: Annotated[Tensor, Shape(("certificate",), torch.uint8)]
    signature: Annotated[Tensor, Shape(("signature",), torch.uint8)]


@dataclass(frozen=True)
class Terms(Message):
    """The settings from which all parties build their halves; the same in every request of a federation."""

    federation: str  # a random name
    recipe: str  # JSON, without the secret
    backbone: str = ""  # digest of the model without its head, where it is frozen
    rounds: int = 0  # that are planned; may be extended
    epoch: Epoch | None = None  # since the server was last restored from a backup

    @property
    def digest(self) -> str:
        """Return a name for the terms that a party agrees to: the settings and the frozen backbone."""
        return self._whole_digest[:16]

    @property
    def masked(self) -> str:
        """Return the name under which sites vouch for keys: with other terms, reports would have another form."""
        return f"{self.federation} {self._whole_digest}"

    @property
    def _whole_digest(self) -> str:
        return hashlib.sha256(f"{self.recipe}\n{self.backbone}".encode()).hexdigest()


@dataclass(frozen=True)
class Sealed(Message):
    """Bytes that only the proxy can open."""

    box: Bytes


@dataclass(frozen=True)
class SealedContent(Message):
    """The content of a sealed box: a message and its round, so that a box cannot be replayed in another round."""

    header_limit: ClassVar[int] = BOX_HEADER
    federation: str
    round: int
    message: Message


@dataclass(frozen=True)
class TeacherChoice(Message):
    """The proxy's choice of teachers for a round, valid for a head with `blocks` blocks, and their scores."""

    header_limit: ClassVar[int] = BOX_HEADER
    federation: str
    round: int
    blocks: int
    teachers: Teachers
    scores: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SignedChoice(Message):
    """An encoded `TeacherChoice` and the proxy's signature."""

    content: Bytes
    signature: Annotated[Tensor, Shape((64,), torch.uint8)]


# --- from the server ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request(Message):
    """A message from the server to a party."""

    header_limit: ClassVar[int] = REQUEST_HEADER
    protocol: ClassVar[int] = OLDEST  # the first that has it
    terms: Terms


@dataclass(frozen=True)
class IdentifyRequest(Request):
    """Asks a newly connected party for its name, its role and its models, and says whether rounds go on without it."""

    quarantined: bool = False


@dataclass(frozen=True)
class TrainRequest(Request):
    """Asks a site to take part in a round."""

    broadcast: Broadcast
    order: Order
    choice: SignedChoice | None = None
    partners: Partners | None = None  # in a masked round
    retired: Retired = field(default_factory=dict)


@dataclass(frozen=True)
class KeysRequest(Request):
    """Asks a site, which has this number, for its lasting key, and for its keys and shares of a masked round."""

    number: int
    session: Session | None = None


@dataclass(frozen=True)
class UnmaskRequest(Request):
    """Asks a site that has reported in a masked round for its shares of the others' secrets."""

    question: Unmask


@dataclass(frozen=True)
class EvaluateRequest(Request):
    """Asks a site for a model's accuracy on its hold-out images; `last` marks the final model."""

    context: RoundContext
    model: str  # digest
    last: bool = False
    retired: Retired = field(default_factory=dict)


@dataclass(frozen=True)
class ProxyRequest(Request):
    """Passes the sealed boxes of a round on to the proxy, and names the models before and after the round.

    `allowed` says of each box with announcements how many new classes its site may bring. `candidates` are the digests
    of the teachers that the server has.
    """

    context: RoundContext
    sent: str
    averaged: str
    uploads: tuple[Sealed, ...] = ()
    announcements: tuple[Sealed, ...] = ()
    allowed: tuple[int, ...] = ()
    candidates: tuple[str, ...] = ()


@dataclass(frozen=True)
class Release(Message):
    """A model that the server has frozen: its number, digest, classes, accuracy and origin."""

    number: int
    model: str  # digest
    round: int  # after which it was frozen, from 1
    catalogue: tuple[str, ...]  # class ids in the order of the outputs
    records: str  # digest of the records of all rounds so far
    previous: str  # digest of the release before; empty for the first
    accuracy: float | None = None  # in percent, on hold-out images of the sites
    covered: int = 0  # classes that it covers
    images: int = 0  # hold-out images that it covers

    def __post_init__(self) -> None:
        if not 1 <= self.number < MOST_RELEASES or self.round < 0 or len(set(self.catalogue)) < len(self.catalogue):
            raise ValueError("its number, its round or its classes cannot be")

    @property
    def digest(self) -> str:
        """Return a digest of all of it, which the next release names."""
        return hashlib.sha256(encode(self)).hexdigest()


@dataclass(frozen=True)
class ReleaseRequest(Request):
    """Tells a site which release is the current one, and since when; a later one replaces an earlier one."""

    protocol: ClassVar[int] = 5
    release: Release
    since: int  # seconds since 1970; never the same for two
    retired: Retired = field(default_factory=dict)


@dataclass(frozen=True)
class NewsRequest(Request):
    """Asks a site whether it has so many new images, as far as a look into its folder tells."""

    protocol: ClassVar[int] = 5
    images: int = 1


@dataclass(frozen=True)
class EndRequest(Request):
    """Tells a party that the federation has ended."""


# --- to the server ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer(Message):
    """A party's answer: its content, and the digests of the models that the party holds.

    The content is the result that the request asks for, `Missing` if models must be sent first, or a `Refusal`.
    """

    header_limit: ClassVar[int] = ANSWER_HEADER
    held: tuple[str, ...]
    content: Message


@dataclass(frozen=True)
class Identity(Message):
    """A party's own name and role; where nodes have keys, the roster is believed instead."""

    name: str = ""
    role: str = "site"


@dataclass(frozen=True)
class Refusal(Message):
    """The reason why a request is not answered, in a sentence."""

    sentence: str = ""


@dataclass(frozen=True)
class TrainResult(Message):
    """A site's round: a reply or a failure; with a proxy, announced class ids are sealed for it."""

    reply: Reply | None = None
    failure: Failure | None = None
    sealed: Sealed | None = None


@dataclass(frozen=True)
class KeysResult(Message):
    """A site's lasting key, vouched for, and its keys and shares if the masked round that is asked for names that key.

    `spent` says that the site has begun this round with other partners. `strangers` are participants that no site
    vouches for.
    """

    voucher: Voucher
    message: KeyMessage | None = None
    spent: bool = False
    strangers: tuple[int, ...] = ()


@dataclass(frozen=True)
class EvaluationResult(Message):
    """Correctly classified and all hold-out images of a site, per output of the model."""

    right: Annotated[Tensor, Shape(("outputs",), torch.int64)] = field(default_factory=lambda: torch.zeros(0).long())
    total: Annotated[Tensor, Shape(("outputs",), torch.int64)] = field(default_factory=lambda: torch.zeros(0).long())

    def __post_init__(self) -> None:
        if bool(((self.right < 0) | (self.right > self.total)).any()):
            raise ValueError("it counts more right images than images, or fewer than none")


@dataclass(frozen=True)
class ProxyResult(Message):
    """The proxy's round: new class ids, and its signed choices for the next round, with and without a new block.

    `brought` counts the new ids in each box, so that the server can limit a site without knowing its ids.
    """

    choices: tuple[SignedChoice, ...] = ()
    announced: tuple[str, ...] = ()
    measures: dict[str, float] = field(default_factory=dict)
    brought: tuple[int, ...] = ()


@dataclass(frozen=True)
class ReleaseHeld(Message):
    """Says since when the release that a site now holds has been the current one."""

    since: int


@dataclass(frozen=True)
class NewsResult(Message):
    """Says whether a site has new images."""

    fresh: bool


@dataclass(frozen=True)
class Ended(Message):
    """Confirms an `EndRequest`."""


# --- the wire -----------------------------------------------------------------------------------------------------


def release() -> str:
    """Return the first line of every message of this release, with the protocols that it speaks."""
    return f"fcil protocol {OLDEST}-{PROTOCOL} release {fcil.__version__}"


def release_of(data: bytes) -> str:
    r"""Return the release of a message's sender, for people.

    >>> release_of(b"fcil protocol 4-5 release 0.1.0\n...")
    '0.1.0'
    """
    return one_line(data[:LINE].partition(b"\n")[0].decode("ascii", "replace").rpartition(" ")[2])


def encode_message(message: Message) -> bytes:
    """Return a message as it is sent: the line of this release, and the encoded message."""
    return f"{release()}\n".encode() + encode(message)


def common_protocol(data: bytes) -> int:
    """Return the latest protocol that both sides speak, or raise an error that names both releases."""
    line, newline, _ = data[:LINE].partition(b"\n")
    if not newline or not line.startswith(b"fcil protocol "):
        raise FederationError(f"this is not a message of fcil: it begins with {bytes(data[:20])!r}")
    found = SPOKEN.fullmatch(line)
    oldest, latest = map(int, found.groups()) if found else (0, 0)
    if latest < OLDEST or oldest > PROTOCOL:
        theirs = one_line(line.decode("ascii", "replace"))
        raise FederationError(
            f"the other side runs another release ({theirs}, here {release()}); install releases on both sides that "
            "share a protocol"
        )
    return min(latest, PROTOCOL)


def decode_message(data: bytes, expected: type[M], limit: int) -> M:
    """Return the message in received bytes; one without a common protocol, damaged or above `limit` is an error."""
    common_protocol(data)
    line = data[:LINE].partition(b"\n")[0]
    try:
        return decode(memoryview(data)[len(line) + 1 :], expected, limit)
    except CodecError as error:
        raise FederationError(f"a message cannot be read: {error}") from error


def encode_model(digest: str, model: ModelState) -> bytes:
    """Return a model as it is sent beside a request."""
    return encode(ModelParcel(digest, model))


def decode_model(digest: str, data: bytes, limit: int) -> ModelParcel:
    """Return a model received beside a request; it must have the digest that names it."""
    try:
        parcel = decode(data, ModelParcel, limit)
    except CodecError as error:
        raise FederationError(f"the model {digest} cannot be read: {error}") from error
    if parcel.digest != digest or model_digest(parcel.model) != digest:
        raise FederationError(f"a model came that is not the one with the digest {digest}")
    return parcel
