"""Messages between the server and the other parties of a real federation: requests of the server, and answers.

On the wire, a message follows a line of plain text that names the protocol and the release of its sender. So a release
that cannot read the message can still say that releases differ.
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

PROTOCOL = 2
LINE = 100  # bytes of the first line at most
# Largest headers of messages in bytes; 100,000 class ids take 3.5 MB. A box has the ids of one site. The proxy's answer
# has the ids of all sites, and a hostile site can fill a box with invented ones. The server's requests have the whole
# catalogue, in which hostile ids are up to 20 times as long as others, and the boxes of all sites.
BOX_HEADER, ANSWER_HEADER, REQUEST_HEADER = 4 << 20, 16 << 20, 256 << 20
Bytes = Annotated[Tensor, Shape(("bytes",), torch.uint8)]
M = TypeVar("M", bound=Message)


def as_tensor(data: bytes) -> Tensor:
    """Return bytes as a tensor, the only form in which a message holds them."""
    return torch.from_numpy(np.frombuffer(bytearray(data), np.uint8))


def as_bytes(tensor: Tensor) -> bytes:
    """Return the bytes of such a tensor."""
    return tensor.numpy().tobytes()


# --- terms and teachers --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Terms(Message):
    """The settings from which all parties build their halves; the same in every request of a federation."""

    federation: str  # a random name
    recipe: str  # JSON, without the secret


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
    terms: Terms


@dataclass(frozen=True)
class IdentifyRequest(Request):
    """Asks a newly connected party for its name, its role and its models."""


@dataclass(frozen=True)
class TrainRequest(Request):
    """Asks a site to take part in a round."""

    broadcast: Broadcast
    order: Order
    choice: SignedChoice | None = None


@dataclass(frozen=True)
class EvaluateRequest(Request):
    """Asks a site for a model's accuracy on its hold-out images; `last` marks the final model."""

    context: RoundContext
    model: str  # digest
    last: bool = False


@dataclass(frozen=True)
class ProxyRequest(Request):
    """Passes the sealed boxes of a round on to the proxy, and names the models before and after the round."""

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
class EvaluationResult(Message):
    """Correctly classified and all hold-out images of a site, per output of the model."""

    right: Annotated[Tensor, Shape(("outputs",), torch.int64)] = field(default_factory=lambda: torch.zeros(0).long())
    total: Annotated[Tensor, Shape(("outputs",), torch.int64)] = field(default_factory=lambda: torch.zeros(0).long())

    def __post_init__(self) -> None:
        if bool(((self.right < 0) | (self.right > self.total)).any()):
            raise ValueError("it counts more right images than images, or fewer than none")


@dataclass(frozen=True)
class ProxyResult(Message):
    """The proxy's round: new class ids, and its signed choices for the next round, with and without a new block."""

    choices: tuple[SignedChoice, ...] = ()
    announced: tuple[str, ...] = ()
    measures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended(Message):
    """Confirms an `EndRequest`."""


# --- the wire -----------------------------------------------------------------------------------------------------


def release() -> str:
    """Return the first line of every message of this release."""
    return f"fcil protocol {PROTOCOL} release {fcil.__version__}"


def encode_message(message: Message) -> bytes:
    """Return a message as it is sent: the line of this release, and the encoded message."""
    return f"{release()}\n".encode() + encode(message)


def decode_message(data: bytes, expected: type[M], limit: int) -> M:
    """Return the message in received bytes; one of another release, damaged or larger than `limit` is an error."""
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
