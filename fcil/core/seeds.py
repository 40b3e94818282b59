"""Randomness as a function of purpose: no draw depends on what was drawn before it elsewhere."""

from __future__ import annotations

import hashlib
import json

import torch


def derive_seed(root: int, *purpose: str | int) -> int:
    """Return a 63-bit seed that depends on the root and on every part of the purpose, and on nothing else.

    >>> derive_seed(2021, "participants", 7) == derive_seed(2021, "participants", 7)
    True
    >>> derive_seed(2021, "participants", 7) == derive_seed(2021, "participants", 8)
    False
    """
    return Stream(root).seed(*purpose)


class Stream:
    """All seeds of one purpose: its holder can derive these seeds, but neither the root nor other purposes.

    It keeps the state of a hash that has taken in the root and the purpose, not these themselves.

    >>> Stream(2021, "participants").seed(7) == derive_seed(2021, "participants", 7)
    True
    """

    def __init__(self, root: int, *purpose: str | int) -> None:
        text = json.dumps([root, *purpose], separators=(",", ":"))
        self._begun = hashlib.sha256(text[:-1].encode())  # without the bracket that would end it

    def seed(self, *purpose: str | int) -> int:
        """Return the seed of a further purpose."""
        total = self._begun.copy()
        total.update(("".join(f",{json.dumps(part)}" for part in purpose) + "]").encode())
        return int.from_bytes(total.digest()[:8], "big") >> 1


def generator(seed: int) -> torch.Generator:
    """Return a CPU generator of its own, so that the global one is never touched."""
    return torch.Generator().manual_seed(seed)
