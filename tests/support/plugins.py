"""Packages of others, laid out in a folder as an installer does, and a registry that is searched anew."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fcil.core import registry as plugins
from fcil.methods import base, methods
from fcil.models import networks
from fcil.models import registry as network


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
    """Search for methods and networks anew, with these folders in front of all places."""
    methods()  # so that our own are in the registries that are copied
    networks()
    with pytest.MonkeyPatch.context() as patch:
        for folder in reversed(folders):
            patch.syspath_prepend(folder)
        for registry in (base, network):
            patch.setattr(registry, "_registry", dict(registry._registry))
        forget()
        try:
            yield
        finally:
            forget()
            for path in (path for folder in folders for path in folder.glob("*.py")):
                sys.modules.pop(path.stem, None)


def forget() -> None:
    """Let entry points be read again."""
    for remembered in (base._import_all, network._import_all, plugins.entry_points):
        remembered.cache_clear()
