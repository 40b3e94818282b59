"""Traces of secrets: a value in all ways in which it may be written."""

from __future__ import annotations

from fcil.deployment.keys.sealing import Secret


def forms(data: bytes) -> set[bytes]:
    """Return the ways in which bytes may be written."""
    return {data, data[::-1], data.hex().encode(), data.hex().upper().encode()}


def numbers(value: int) -> set[bytes]:
    """Return the ways in which a number may be written."""
    size = max(8, (value.bit_length() + 7) // 8)
    return {str(value).encode(), f"{value:x}".encode(), value.to_bytes(size, "little"), value.to_bytes(size, "big")}


def of_secret(secret: Secret) -> dict[str, set[bytes]]:
    """Return what follows from a consortium's secret and must not be at the server, by what it is."""
    return {
        "the secret": forms(secret.value),
        "the key of class ids": forms(secret._derive(b"fcil class id")),
        "the key of the encoder": forms(secret._derive(b"fcil encoder seed")),
        "the encoder's seed": numbers(secret.encoder_seed),
    }
