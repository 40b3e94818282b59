"""Settings of all tests: one thread, the examples of a property, and the marks of long and numeric tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from support.examples import LONG, USUAL

TESTS = Path(__file__).parent
# Floating point all the way: `make portable` runs these under other instruction sets. A test elsewhere that learns
# or compares floats asks for the same with `@pytest.mark.numeric`.
NUMERIC = [TESTS / name for name in ("federation/aggregation", "maths", "methods", "models")]
FEDERATIONS = "test_federation.py"  # real processes, minutes in sum
LEARNING = "test_learns_and_keeps_what_its_memory_holds"  # the contract, which ships without our markers

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure
settings.register_profile("usual", PATIENT, derandomize=True, max_examples=USUAL)
settings.register_profile("long", PATIENT, derandomize=False, print_blob=True, max_examples=LONG)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="also play the long tests, and try many more examples")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("long" if config.getoption("soak") else "usual")


def pytest_itemcollected(item: pytest.Item) -> None:
    if any(item.path.is_relative_to(place) for place in NUMERIC) or item.name == LEARNING:
        item.add_marker("numeric")
    if _needs_ray(item):
        item.add_marker(pytest.mark.xdist_group("ray"))  # starting Ray takes seconds, so only one process does


def _needs_ray(item: pytest.Item) -> bool:
    case = getattr(item, "callspec", None)
    return item.path.name.startswith("test_ray") or (case is not None and case.params.get("engine") == "ray")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long tests out, unless they are asked for; federations come first.

    A group that takes minutes must not be what one process begins with when the others have ended.
    """
    items.sort(key=lambda item: item.path.name != FEDERATIONS)
    if config.getoption("soak"):
        return
    long = [item for item in items if item.get_closest_marker("soak") is not None]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)
