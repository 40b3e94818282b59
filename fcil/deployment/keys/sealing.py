"""The consortium's secret, sealed boxes for the proxy, and signatures of the proxy."""

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
STEP = 4096  # bytes; contents are padded to a multiple of this
PREFIX = 8  # bytes of the length before a content


class SealError(FcilError):
    """Data that was sealed for another key, or was damaged."""


@dataclass(frozen=True)
class Secret:
    """Random bytes that all sites and the proxy share, never the server; class ids and seeds derive from them."""

    value: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.value) != KEY_SIZE:
            raise SealError(f"a consortium's secret has {KEY_SIZE} bytes, found {len(self.value)}")

    @classmethod
    def random(cls) -> Secret:
        """Return a new secret."""
        return cls(secrets.token_bytes(KEY_SIZE))

    def class_id(self, name: str) -> str:
        """Return the id of a class, the same at every site; without the secret, names cannot be guessed from it."""
        written = (
            unicodedata.normalize("NFC", name).strip().encode(errors="surrogatepass")
        )  # a file name may be any bytes
        return hmac.new(self._derive(b"fcil class id"), written, hashlib.sha256).hexdigest()[:32]

    @property
    def encoder_seed(self) -> int:
        """The seed of the encoder that sites encode prototypes with and the proxy inverts."""
        return int.from_bytes(self._derive(b"fcil encoder seed")[:8], "big") >> 1

    @property
    def masking(self) -> bytes:
        """The key with which sites vouch for the keys of their masks."""
        return self._derive(b"fcil masking")

    @property
    def check(self) -> str:
        """A short text to compare two copies of the secret, for instance by telephone; it reveals nothing."""
        return self._derive(b"fcil check")[:8].hex()

    def _derive(self, purpose: bytes) -> bytes:
        return hmac.new(self.value, purpose, hashlib.sha256).digest()


# --- sealed boxes -------------------------------------------------------------------------------------------------


def seal(content: bytes, key: bytes, step: int = STEP) -> bytes:
    """Return a content sealed for the owner of an X25519 key; it hides its sender and its exact length."""
    filled = -(-(PREFIX + len(content)) // step) * step
    padded = (len(content).to_bytes(PREFIX, "big") + content).ljust(filled, b"\0")
    try:
        return SealedBox(PublicKey(key)).encrypt(padded)
    except CryptoError as error:
        raise SealError(
            f"nothing can be sealed with this key: it should be {KEY_SIZE} bytes of an X25519 key"
        ) from error


def unseal(data: bytes, private: bytes) -> bytes:
    """Return the content of a box sealed for a key, or raise a SealError."""
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
    """Return the public half of an X25519 key, which others seal with."""
    return bytes(PrivateKey(private).public_key)


# --- signatures ---------------------------------------------------------------------------------------------------


def sign(content: bytes, key: bytes) -> bytes:
    """Return the Ed25519 signature of a content by the owner of a private key."""
    return SigningKey(key).sign(content).signature


def verify(content: bytes, signature: bytes, public: bytes) -> bool:
    """Return True if a signature of a content was made with a key."""
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
    """Return the public half of an Ed25519 key, which others verify with."""
    return bytes(SigningKey(private).verify_key)
