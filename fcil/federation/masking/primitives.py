"""The cryptography of masked sums, all of it from `cryptography`: pure functions over bytes and arrays."""

from __future__ import annotations

import hashlib
import hmac
import secrets

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fcil.core.errors import FederationError

KEY = 32  # bytes of a key, a seed or a digest
NONCE, TAG = 12, 16  # bytes that a sealed box has in addition to its content
PIECE = 1 << 15  # numbers of a mask that are made at a time: they stay in the processor's cache
Ring = npt.NDArray[np.uint64]  # numbers that are added modulo 2^64


def new_key() -> bytes:
    """Return random bytes: a private key or a seed."""
    return secrets.token_bytes(KEY)


def public_key(private: bytes) -> bytes:
    """Return the public half of an X25519 key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes) -> bytes:
    """Return the secret that two X25519 keys have in common (RFC 7748)."""
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:  # a point of low order
        raise FederationError("a key for masks is no X25519 key") from error


def derive(secret: bytes, *info: bytes) -> bytes:
    """Return a key that follows from a secret and from all of its circumstances (HKDF with SHA-256, RFC 5869)."""
    joined = info[0] if len(info) == 1 else b"".join(len(part).to_bytes(4, "big") + part for part in info)
    return HKDF(algorithm=SHA256(), length=KEY, salt=None, info=joined).derive(secret)


def vouch(secret: bytes, *content: bytes) -> bytes:
    """Return the proof that an owner of the secret stands behind a content."""
    joined = b"".join(len(part).to_bytes(4, "big") + part for part in content)
    return hmac.new(secret, joined, hashlib.sha256).digest()


def is_vouched(proof: bytes, secret: bytes, *content: bytes) -> bool:
    """Return whether a proof belongs to this content."""
    return hmac.compare_digest(proof, vouch(secret, *content))


def seal(content: bytes, key: bytes, about: bytes) -> bytes:
    """Return a content that only the owners of a key can open, bound to what it is about (RFC 8439)."""
    nonce = secrets.token_bytes(NONCE)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, about)


def unseal(box: bytes, key: bytes, about: bytes) -> bytes:
    """Return the content of a box; one that is about something else, or was changed, does not open."""
    try:
        return ChaCha20Poly1305(key).decrypt(box[:NONCE], box[NONCE:], about)
    except InvalidTag as error:
        raise FederationError("a sealed share does not open: it is of another round, or was changed") from error


def add_stream(numbers: Ring, seed: bytes, negative: bool = False) -> None:
    """Add the ChaCha20 key stream of a seed, read as numbers of 64 bits, to an array, or subtract it."""
    stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()
    zeros, buffer = memoryview(bytes(8 * PIECE)), bytearray(8 * PIECE)
    words = np.frombuffer(buffer, "<u8")
    combine = np.subtract if negative else np.add
    for start in range(0, len(numbers), PIECE):
        part = numbers[start : start + PIECE]
        stream.update_into(zeros[: 8 * len(part)], buffer)
        combine(part, words[: len(part)], out=part)
