"""The proxy's choice of teachers: signing it, verifying the signature, reading it."""

from __future__ import annotations

from fcil.core.errors import FederationError
from fcil.core.messages import CodecError, decode, encode
from fcil.deployment.keys.sealing import sign, verify
from fcil.deployment.transport.messages import SignedChoice, TeacherChoice, as_bytes, as_tensor


def signed_choice(choosing: TeacherChoice, key: bytes) -> SignedChoice:
    """Return a choice with the proxy's signature."""
    content = encode(choosing)
    return SignedChoice(as_tensor(content), as_tensor(sign(content, key)))


def checked_choice(choice: SignedChoice, key: bytes) -> TeacherChoice:
    """Return the choice if its signature is the proxy's; refuse it otherwise."""
    content = as_bytes(choice.content)
    if not verify(content, as_bytes(choice.signature), key):
        raise FederationError("the choice of teachers does not carry the proxy's signature")
    return read_choice(choice)


def read_choice(choice: SignedChoice) -> TeacherChoice:
    """Return the content of a choice without verifying its signature."""
    try:
        return decode(as_bytes(choice.content), TeacherChoice)
    except CodecError as error:
        raise FederationError(f"the choice of teachers cannot be read: {error}") from error
