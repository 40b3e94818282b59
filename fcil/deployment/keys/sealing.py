"""What sites and proxy keep from the server: the consortium's secret, sealed boxes for the proxy, and its signature."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import unicodedata
from dataclasses import dataclass, field

from nacl.bindings import crypto_sign_BYTES
from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, PublicKey, SealedBox
from nacl.signing import SigningKey, VerifyKey

from fcil.core.errors import FcilError

KEY_SIZE = 32  # bytes of a secret, and of either half of an X25519 or Ed25519 key
STEP = 4096  # bytes; a sealed content's length is known to this much only
PREFIX = 8  # bytes before a content that say how long it is


class SealError(FcilError):
    """Something is not sealed for this key, or is not as it was sealed."""


@dataclass(frozen=True)
class Secret:
    """What all sites and the proxy share and the server never has: random bytes, from which names and seeds follow."""

    value: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.value) != KEY_SIZE:
            raise SealError(f"a consortium's secret has {KEY_SIZE} bytes, found {len(self.value)}")

    @classmethod
    def random(cls) -> Secret:
        """Return a new secret."""
        return cls(secrets.token_bytes(KEY_SIZE))

    def class_id(self, name: str) -> str:
        """Return the id of a class, the same at every site; without the secret, no name can be tried against it."""
        written = (
            unicodedata.normalize("NFC", name).strip().encode(errors="surrogatepass")
        )  # a file's name may be any bytes
        return hmac.new(self._derive(b"fcil class id"), written, hashlib.sha256).hexdigest()[:32]

    @property
    def encoder_seed(self) -> int:
        """The seed of the encoder with which sites hide prototypes and the proxy rebuilds them."""
        return int.from_bytes(self._derive(b"fcil encoder seed")[:8], "big") >> 1

    @property
    def check(self) -> str:
        """A short text by which people see on the telephone that they hold the same secret; it gives nothing away."""
        return self._derive(b"fcil check")[:8].hex()

    def _derive(self, purpose: bytes) -> bytes:
        return hmac.new(self.value, purpose, hashlib.sha256).digest()


# --- sealed boxes -------------------------------------------------------------------------------------------------


def seal(content: bytes, key: bytes) -> bytes:
    """Return a content that only the owner of an X25519 key can open; neither its sender nor its exact length shows."""
    filled = -(-(PREFIX + len(content)) // STEP) * STEP
    padded = (len(content).to_bytes(PREFIX, "big") + content).ljust(filled, b"\0")
    try:
        return SealedBox(PublicKey(key)).encrypt(padded)
    except CryptoError as error:
        raise SealError(
            f"nothing can be sealed with this key: it should be {KEY_SIZE} bytes of an X25519 key"
        ) from error


def unseal(data: bytes, private: bytes) -> bytes:
    """Return what was sealed for a key, or raise a SealError if it is anything else."""
    try:
        padded = SealedBox(PrivateKey(private)).decrypt(data)
    except CryptoError as error:
        raise SealError(
            f"{len(data)} sealed bytes do not open: they were sealed for another key, or damaged on the way"
        ) from error
    length, rest = int.from_bytes(padded[:PREFIX], "big"), len(padded) - PREFIX
    if length > rest or any(padded[PREFIX + length :]):
        raise SealError(f"{len(data)} sealed bytes open to {max(rest, 0)}, which say that they hold {length}")
    return padded[PREFIX : PREFIX + length]


def make_sealing_key() -> bytes:
    """Return a new private X25519 key."""
    return bytes(PrivateKey.generate())


def public_sealing_key(private: bytes) -> bytes:
    """Return the half of an X25519 key with which others seal."""
    return bytes(PrivateKey(private).public_key)


# --- signatures ---------------------------------------------------------------------------------------------------


def sign(content: bytes, key: bytes) -> bytes:
    """Return the Ed25519 signature of a content by the owner of a private key."""
    return SigningKey(key).sign(content).signature


def verify(content: bytes, signature: bytes, public: bytes) -> bool:
    """Say whether a signature is the one of this content by the owner of this key."""
    if len(signature) != crypto_sign_BYTES:
        return False
    try:
        VerifyKey(public).verify(content, signature)
    except CryptoError:
        return False
    return True


def make_signing_key() -> bytes:
    """Return the seed of a new private Ed25519 key."""
    return bytes(SigningKey.generate())


def public_signing_key(private: bytes) -> bytes:
    """Return the half of an Ed25519 key with which others verify."""
    return bytes(SigningKey(private).verify_key)
