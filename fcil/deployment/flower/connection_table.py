"""Bookkeeping of the open connections: at a limit the oldest stranger makes way for a newcomer.

A newcomer is never turned away, since before TLS nobody can tell a registered party from a stranger. An address with
many connections loses its own oldest first, so strangers at other addresses cannot displace a party.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Hashable
from typing import Generic, TypeVar

from fcil.deployment.flower.limits import ConnectionLimits

C = TypeVar("C", bound=Hashable)
K = TypeVar("K", int, str)


class ConnectionTable(Generic[C]):
    """Connections of strangers by address and of registered parties by node, each the oldest first."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.strangers: dict[str, dict[C, None]] = defaultdict(dict)
        self.nodes: dict[int, dict[C, None]] = defaultdict(dict)

    @property
    def unknown(self) -> int:
        """Return the number of strangers."""
        return sum(map(len, self.strangers.values()))

    def enter(self, connection: C, address: str) -> list[C]:
        """Add a connection, and return the connections to close for it."""
        there = self.strangers[network_of(address)]
        there[connection] = None
        if len(there) > self.limits.strangers_per_address:
            return [self._drop_oldest(there)]
        if self.unknown > self.limits.strangers:
            return [self._drop_oldest(max(self.strangers.values(), key=len))]
        return []

    def prove(self, connection: C, address: str, node: int | None) -> list[C]:
        """Assign a connection to its node, the owner's to nobody, and return the connections to close."""
        self._leave(self.strangers, network_of(address), connection)
        if node is None:
            return []
        own = self.nodes[node]
        own[connection] = None
        return [self._drop_oldest(own)] if len(own) > self.limits.per_node else []

    def leave(self, connection: C, address: str, node: int | None) -> None:
        """Remove a connection, if it is still there."""
        self._leave(self.strangers, network_of(address), connection)
        if node is not None:
            self._leave(self.nodes, node, connection)

    def oldest_stranger(self) -> list[C]:
        """Remove and return the oldest connection of the address with the most, if there is one."""
        fullest = max(self.strangers.values(), key=len, default=None)
        return [self._drop_oldest(fullest)] if fullest else []

    @staticmethod
    def _drop_oldest(group: dict[C, None]) -> C:
        oldest = next(iter(group))
        del group[oldest]
        return oldest

    @staticmethod
    def _leave(groups: dict[K, dict[C, None]], key: K, connection: C) -> None:
        group = groups.get(key, {})
        group.pop(connection, None)
        if not group:
            groups.pop(key, None)


def network_of(address: str) -> str:
    """Return the network that one stranger has to itself: an IPv4 address, or 64 bits of an IPv6 address.

    >>> network_of("192.0.2.7"), network_of("::ffff:192.0.2.7"), network_of("2001:db8::1:2:3:4%eth0")
    ('192.0.2.7', '192.0.2.7', '2001:db8::')
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), 64), strict=False).network_address)
