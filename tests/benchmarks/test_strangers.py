"""The pieces of `make bench NAME=strangers`, without its federation; tests/security has the attacks themselves."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

from benchmarks.hostile import KINDS, Strangers
from benchmarks.strangers import pace


def test_rounds_under_attack_are_compared_with_quiet_ones() -> None:
    opened = dict.fromkeys(KINDS, 125)
    assert pace([2.0, 2.0, 9.0], [3.0, 2.9, 9.0], opened).holds
    assert pace([2.0, 2.0, 9.0], [3.1, 3.1, 1.0], opened).holds is False


def test_only_this_machine_is_attacked() -> None:
    with pytest.raises(AssertionError, match="only its own machine"):
        Strangers("192.0.2.7:9000")
