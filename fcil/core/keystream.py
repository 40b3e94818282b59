"""Random numbers that nobody can foresee: the ChaCha20 key stream of a key, as whole numbers below a bound."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

Words = npt.NDArray[np.uint64]


class Keystream:
    """The stream of a key; no number of it is given twice."""

    def __init__(self, key: bytes) -> None:
        """Take a key of 32 bytes."""
        self._stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()

    @classmethod
    def of(cls, *purpose: int | str) -> Keystream:
        """Return the stream whose key depends on every part of a purpose, one of which is secret."""
        return cls(hashlib.sha256(repr(purpose).encode()).digest())

    def words(self, count: int) -> Words:
        """Return the next words of 64 bits."""
        return np.frombuffer(self._stream.update(bytes(8 * count)), "<u8").astype(np.uint64)

    def below(self, bound: int, count: int) -> Words:
        """Return whole numbers from 0 to below a bound of at most 2^63, each with exactly the same probability."""
        shift = np.uint64(64 - max((bound - 1).bit_length(), 1))
        found = self.words(count) >> shift
        wrong = np.flatnonzero(found >= bound)
        while len(wrong):
            found[wrong] = self.words(len(wrong)) >> shift
            wrong = wrong[found[wrong] >= bound]
        return found
