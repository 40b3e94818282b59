"""Shamir's secret sharing (1979) over a prime field: any `threshold` shares give the secret, fewer tell nothing."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from fcil.federation.masking.primitives import KEY

PRIME = 2**256 + 297  # the smallest above all secrets of 32 bytes
SHARE = KEY + 1  # bytes of a share


def split(secret: bytes, threshold: int, places: Sequence[int]) -> dict[int, bytes]:
    """Return the share of each place, a number from 1 on."""
    coefficients = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {place: polynomial(coefficients, place, PRIME).to_bytes(SHARE, "big") for place in places}


def join(shares: Mapping[int, bytes]) -> bytes | None:
    """Return the secret of some shares by place, as many as the threshold; None if they do not belong together."""
    points = {place: int.from_bytes(share, "big") for place, share in shares.items()}
    found = at_zero(points, PRIME)
    return found.to_bytes(KEY, "big") if found < 1 << 8 * KEY else None


def polynomial(coefficients: Sequence[int], x: int, prime: int) -> int:
    """Return the value of a polynomial, whose constant term comes first, modulo a prime."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % prime
    return value


def at_zero(points: Mapping[int, int], prime: int) -> int:
    """Return the value at zero of the polynomial of least degree through some points (Lagrange), modulo a prime."""
    total = 0
    for place, value in points.items():
        above, below = 1, 1
        for other in points:
            if other != place:
                above, below = above * other % prime, below * (other - place) % prime
        total = (total + value * above * pow(below, -1, prime)) % prime
    return total
