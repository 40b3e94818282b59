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
    text = json.dumps([root, *purpose], separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int) -> torch.Generator:
    """Return a CPU generator of its own, so that the global one is never touched."""
    return torch.Generator().manual_seed(seed)
