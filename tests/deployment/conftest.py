"""Consortiums for the tests of a deployment, closed when a test ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.consortium import SITES, Build, Consortium, Keyring, small_config


@pytest.fixture(scope="session")
def keyring(tmp_path_factory: pytest.TempPathFactory) -> Keyring:
    return Keyring(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def build(tmp_path: Path, keyring: Keyring) -> Iterator[Build]:
    made: list[Consortium] = []

    def build(method: str = "icarl", *settings: str, rounds: int = 4, sites: Sequence[str] = SITES[:3]) -> Consortium:
        config = small_config(method, *settings, rounds=rounds)
        made.append(Consortium(tmp_path / f"consortium-{len(made)}", keyring, config, sites))
        return made[-1]

    yield build
    for consortium in made:
        consortium.close()
