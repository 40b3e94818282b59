"""The model that a federation goes back to when a newer one turns out to be bad."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fcil.core.messages import Message, ModelState
from fcil.federation.class_catalogue import Catalogue


@dataclass(frozen=True)
class LastGood(Message):
    """The newest model that is known to be good, with the state of the method's server at that time.

    A model is good once most of its participants could train on it, or, with federation.max_drop, once it was measured.
    """

    model: ModelState
    role_state: Message
    catalogue: Catalogue
    accuracy: dict[str, float] = field(default_factory=dict)  # by where it was measured, in percent


def most_dropped(before: Mapping[str, float], now: Mapping[str, float], limit: float) -> bool:
    """Return whether accuracy has dropped by more than the limit in more than half of the places measured both times.

    Each site counts once, so a minority of sites that lie about their hold-out images decides nothing.

    >>> most_dropped({"0": 90.0, "1": 80.0, "2": 70.0}, {"0": 10.0, "1": 9.0, "2": 71.0}, 50.0)
    True
    >>> most_dropped({"0": 90.0, "1": 80.0}, {"0": 10.0, "1": 79.0}, 50.0)
    False
    """
    both = before.keys() & now.keys()
    dropped = sum(before[place] - now[place] > limit for place in both)
    return 2 * dropped > len(both)
