"""How many examples a property is tried on: few in `make test`, many in `make soak`."""

from __future__ import annotations

from hypothesis import settings

USUAL, LONG = 40, 1000


def examples(count: int) -> settings:
    """Ask for another number of examples than the usual one; a long run tries more in proportion."""
    return settings(max_examples=count * settings.default.max_examples // USUAL)
