"""What all tests share: one thread, how many examples a property is tried on, and which tests are long or numeric."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from support.examples import LONG, USUAL

TESTS = Path(__file__).parent
# Floating point all the way: `make portable` plays these under other instruction sets. A test elsewhere that learns
# or compares floats asks for the same with `@pytest.mark.numeric`.
NUMERIC = [TESTS / name for name in ("federation/aggregation", "maths", "methods", "models")]
CLUSTERS = ("ray", "flower")
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
    for name in CLUSTERS:
        if _plays_on(item, name):
            item.add_marker(pytest.mark.xdist_group(name))  # starting one takes seconds, so only one process does


def _plays_on(item: pytest.Item, cluster: str) -> bool:
    played = getattr(item, "callspec", None)
    named = item.path.name.startswith(f"test_{cluster}")
    return named or (played is not None and played.params.get("engine") == cluster)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long tests out, unless they are asked for; federations come first, Flower's runtime last.

    That runtime needs Ray to itself, so without this it would be stopped and started between tests of the other
    engines. And a group that takes minutes must not be what one process begins with when the others have ended.
    """
    items.sort(key=lambda item: (item.path.name != FEDERATIONS, _plays_on(item, "flower")))
    for item in items:
        if _plays_on(item, "flower"):
            # After Ray's tests in one process its runtime may not come up; in e2e/test_engines.py it has one to itself.
            item.add_marker(pytest.mark.soak)
    if config.getoption("soak"):
        return
    long = [item for item in items if item.get_closest_marker("soak") is not None]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)
