"""Network addresses: parsing them, free ports, and whether a host is this machine."""

from __future__ import annotations

import ipaddress
import socket

from fcil.core.errors import ConfigError


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def split_address(address: str, option: str) -> tuple[str, int]:
    """Return host and port of an address.

    >>> split_address("fcil.example.org:9000", "--address"), split_address("[::1]:9000", "--address")
    (('fcil.example.org', 9000), ('::1', 9000))
    """
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"{option} {address}: it should be HOST:PORT, for instance 192.0.2.10:9000")
    return host, int(port)


def check_loopback(address: str, option: str) -> None:
    """Refuse an address at which other machines could read traffic without TLS."""
    host, _ = split_address(address, option)
    if not is_loopback(host):
        raise ConfigError(
            f"{option} {address}: --insecure turns TLS off, which needs a loopback address such as 127.0.0.1:9000"
        )


def is_loopback(host: str) -> bool:
    """Say whether a host is this machine's loopback address; an address may have a zone.

    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "::1%lo", "0.0.0.0", "::")]
    [True, True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"
