"""Packages of others, laid out in a folder as an installer does, and a registry that is searched anew."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fcil.core import registry as plugins
from fcil.core.registry import Registry
from fcil.data.datasets import DATASETS
from fcil.experiment.logger import LOGGERS
from fcil.federation.aggregation import AGGREGATORS
from fcil.federation.engines import ENGINES
from fcil.methods.base import METHODS
from fcil.models.registry import NETWORKS

REGISTRIES: tuple[Registry[Any], ...] = (METHODS, NETWORKS, AGGREGATORS, DATASETS, LOGGERS, ENGINES)


def install(folder: Path, package: str, entry_points: str, **modules: str) -> None:
    """Lay out a package as an installer does: its modules, and beside them the facts about it."""
    facts = folder / f"{package.replace('-', '_')}-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(entry_points)
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)


@contextmanager
def fresh_registry(*folders: Path) -> Iterator[None]:
    """Search for the members of every kind anew, with these folders in front of all places."""
    for registry in REGISTRIES:
        len(registry)  # so that our own are among the members that are copied
    with pytest.MonkeyPatch.context() as patch:
        for folder in reversed(folders):
            patch.syspath_prepend(folder)
        for registry in REGISTRIES:
            patch.setattr(registry, "_members", dict(registry._members))
            patch.setattr(registry, "_found_others", False)
        plugins.entry_points.cache_clear()
        try:
            yield
        finally:
            plugins.entry_points.cache_clear()
            for path in (path for folder in folders for path in folder.glob("*.py")):
                sys.modules.pop(path.stem, None)
