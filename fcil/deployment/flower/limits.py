"""Limits of a connection to the server before and after it has shown the key of a registered party."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of the HTTP server; a *stranger* is a connection without a validly signed request so far."""

    header_bytes: int = 16 << 10  # of a request line and its headers; Flower's take about 1 KiB
    target_bytes: int = 1 << 10  # of a path with its query
    strangers: int = 1024  # connections of strangers in all; a party opens one to four
    strangers_per_address: int = 512  # of them from one IPv4 address or one IPv6 network of 64 bits
    per_node: int = 32  # connections of one registered party
    newcomers: float = 200.0  # connections accepted per second in the long run; others wait in the system's queue
    newcomers_at_once: int = 600  # and in one burst, as when many sites start
    handshake: float = 10.0  # seconds for TLS
    stranger_life: float = 15.0  # seconds after which a stranger is hung up, whatever it does; TLS included
    idle: float = 30.0  # seconds from an answer to a registered party to its next whole header
    grace: float = 30.0  # seconds that a registered party's body or answer may take in addition to `pace`
    pace: float = 1024.0  # bytes per second that a registered party must at least send or fetch
    closing: float = 30.0  # seconds for the end of TLS with a registered party
    parting: float = 0.02  # seconds from the answer to what is no HTTP, or too large a header, to its end
    files: int = 1 << 14  # open files that the process asks the system for
    ahead: float = 5.0  # seconds that the time of a signature may be ahead of the server's clock, as at Flower
    behind: float = 60.0  # seconds that it may be behind; connecting takes up to 30 of them


LIMITS = ConnectionLimits()
