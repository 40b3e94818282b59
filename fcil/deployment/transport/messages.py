"""The requests between the server and the other parties of a real federation, and how they are put into envelopes.

An envelope begins with a line of plain text that names the protocol and the release that wrote it, so that another
release can say who has to update, whatever has become of the messages behind it.
"""

from __future__ import annotations

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

PROTOCOL = 1
LINE = 100  # bytes of an envelope's first line at most
# Bytes of the headers of messages at most, where 100,000 class ids take 3.5 MB. A box tells of one site. The proxy's
# answer has what all sites have announced, of which a hostile one can make up as much as a box holds. The server's
# requests have the whole catalogue, in which hostile ids are 20 times as long as others, and the boxes of all sites.
BOX_HEADER, ANSWER_HEADER, REQUEST_HEADER = 4 << 20, 16 << 20, 256 << 20
Bytes = Annotated[Tensor, Shape(("bytes",), torch.uint8)]
M = TypeVar("M", bound=Message)


def as_tensor(data: bytes) -> Tensor:
    """Return bytes as a message may hold them."""
    return torch.from_numpy(np.frombuffer(bytearray(data), np.uint8))


def as_bytes(tensor: Tensor) -> bytes:
    """Return the bytes that a message holds."""
    return tensor.numpy().tobytes()


# --- what is agreed on --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Terms(Message):
    """What the server proposes and all parties build their halves from: the same in every request of a federation."""

    federation: str  # a random name
    recipe: str  # JSON, without the secret


@dataclass(frozen=True)
class Sealed(Message):
    """Bytes that only the proxy can open."""

    box: Bytes


@dataclass(frozen=True)
class SealedContent(Message):
    """What is in a sealed box: a message, and the round that it is for, so that a box cannot be handed in again."""

    header_limit: ClassVar[int] = BOX_HEADER
    federation: str
    round: int
    message: Message


@dataclass(frozen=True)
class TeacherChoice(Message):
    """What the proxy signs: the teachers of a round, for a head with so many blocks, and how well they did."""

    header_limit: ClassVar[int] = BOX_HEADER
    federation: str
    round: int
    blocks: int
    teachers: Teachers
    scores: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SignedChoice(Message):
    """An encoded `TeacherChoice` and the proxy's signature of it."""

    content: Bytes
    signature: Annotated[Tensor, Shape((64,), torch.uint8)]


# --- from the server ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request(Message):
    """A request of the server's."""

    header_limit: ClassVar[int] = REQUEST_HEADER
    terms: Terms


@dataclass(frozen=True)
class IdentifyRequest(Request):
    """Asks a party that has just connected who it is and which models it has."""


@dataclass(frozen=True)
class TrainRequest(Request):
    """Asks a site to play a round."""

    broadcast: Broadcast
    order: Order
    choice: SignedChoice | None = None


@dataclass(frozen=True)
class EvaluateRequest(Request):
    """Asks a site how many of its hold-out images a model gets right; the last one of a federation ends it."""

    context: RoundContext
    model: str  # digest
    last: bool = False


@dataclass(frozen=True)
class ProxyRequest(Request):
    """Hands the proxy what sites have sealed for it in a round, and names the models before and after it."""

    context: RoundContext
    sent: str
    averaged: str
    uploads: tuple[Sealed, ...] = ()
    announcements: tuple[Sealed, ...] = ()


@dataclass(frozen=True)
class EndRequest(Request):
    """Tells a party that the federation has ended."""


# --- to the server ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer(Message):
    """An answer to the server, with the models that the party has by digest."""

    header_limit: ClassVar[int] = ANSWER_HEADER
    held: tuple[str, ...] = ()


@dataclass(frozen=True)
class Identity(Answer):
    """Who a party is; where nodes have keys, the roster decides and not this."""

    name: str = ""
    role: str = "site"


@dataclass(frozen=True)
class Lacking(Answer):
    """The models that have to be sent before the request can be answered."""

    digests: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refusal(Answer):
    """Why a request is not answered, in a sentence."""

    sentence: str = ""


@dataclass(frozen=True)
class TrainResult(Answer):
    """A round as a site played it; `sealed` holds the class ids it announces, where there is a proxy to open it."""

    reply: Reply | None = None
    failure: Failure | None = None
    sealed: Sealed | None = None


@dataclass(frozen=True)
class EvaluationResult(Answer):
    """Hold-out images per output of the model, and how many of them it gets right."""

    right: Annotated[Tensor, Shape(("outputs",), torch.int64)] = field(default_factory=lambda: torch.zeros(0).long())
    total: Annotated[Tensor, Shape(("outputs",), torch.int64)] = field(default_factory=lambda: torch.zeros(0).long())

    def __post_init__(self) -> None:
        if bool(((self.right < 0) | (self.right > self.total)).any()):
            raise ValueError("it counts more right images than images, or fewer than none")


@dataclass(frozen=True)
class ProxyResult(Answer):
    """What the proxy made of a round: new class ids, and its choice for the next one, with and without a new block."""

    choices: tuple[SignedChoice, ...] = ()
    announced: tuple[str, ...] = ()
    measures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended(Answer):
    """A party has taken leave."""


# --- envelopes ----------------------------------------------------------------------------------------------------


def release() -> str:
    """Return what the first line of an envelope says of this release."""
    return f"fcil protocol {PROTOCOL} release {fcil.__version__}"


def encode_message(message: Message) -> bytes:
    """Return a message in an envelope."""
    return f"{release()}\n".encode() + encode(message)


def decode_message(data: bytes, expected: type[M], limit: int) -> M:
    """Return the message in an envelope, or raise a FederationError: another release, damage, or more than `limit`."""
    line, newline, _ = data[:LINE].partition(b"\n")
    if not newline or not line.startswith(b"fcil protocol "):
        raise FederationError(f"this is not a message of fcil: it begins with {bytes(data[:20])!r}")
    if line.decode("ascii", "replace") != release():
        theirs = one_line(line.decode("ascii", "replace"))
        raise FederationError(
            f"the other side runs another release ({theirs}, here {release()}); all parties of a federation have to "
            "install the same one"
        )
    try:
        return decode(memoryview(data)[len(line) + 1 :], expected, limit)
    except CodecError as error:
        raise FederationError(f"a message cannot be read: {error}") from error


def encode_model(digest: str, model: ModelState) -> bytes:
    """Return a model as it travels beside a request."""
    return encode(ModelParcel(digest, model))


def decode_model(digest: str, data: bytes, limit: int) -> ModelParcel:
    """Return a model that came beside a request, which must be the one that its digest names."""
    try:
        parcel = decode(data, ModelParcel, limit)
    except CodecError as error:
        raise FederationError(f"the model {digest} cannot be read: {error}") from error
    if parcel.digest != digest or model_digest(parcel.model) != digest:
        raise FederationError(f"a model came that is not the one with the digest {digest}")
    return parcel
