"""What other packages add: modules named in their entry points, which register methods and networks as ours do."""

from __future__ import annotations

import importlib.metadata
import re
import warnings
from functools import cache
from importlib.metadata import EntryPoint
from typing import TypeVar

from fcil.core.errors import ConfigError

Item = TypeVar("Item")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")  # it becomes a part of settings and of directories

SCRIPT = "__main__"  # the module of what a script or a notebook defines, which nobody else can import


class PluginWarning(UserWarning):
    """What another package offers cannot be used; everything else can."""


def home_of(build: object) -> str:
    """Return the module to import where what a function builds is to be known."""
    function = getattr(build, "func", build)  # behind a functools.partial
    return str(getattr(function, "__module__", None) or type(function).__module__)


def check_registration(what: str, name: str, module: str, taken_by: str | None) -> None:
    """Refuse a name that cannot be, or that something of the module `taken_by` has already.

    What a script or a notebook has registered it may register anew, as it does when a cell is run again.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name of a {what}; use letters, digits, - and _")
    if taken_by is not None and (module, taken_by) != (SCRIPT, SCRIPT):
        raise ConfigError(f"two {what}s are called {name}; choose another name")


def load_plugins(group: str, registry: dict[str, Item], what: str) -> None:
    """Import what packages name in a group of entry points; whatever is wrong with it is a warning and no more."""
    for package, entry in entry_points():
        if entry.group != group:
            continue
        before = dict(registry)
        try:
            entry.load()
        except (Exception, SystemExit) as error:  # a module may do anything when it is imported
            registry.clear()
            registry.update(before)
            named = f"{package}, entry point {entry.name} = {entry.value}"
            _warn(f"the {what} of the package {named}, are left out", error)


@cache
def entry_points() -> tuple[tuple[str, EntryPoint], ...]:
    """Return all entry points of our groups, each with its package; a package that cannot be read is warned of once."""
    found: dict[str, list[EntryPoint]] = {}
    for distribution in importlib.metadata.distributions():
        name = str(distribution.name)
        if name in found:  # a second one of that name lies behind the first on the path
            continue
        found[name] = []
        try:
            found[name] = [entry for entry in distribution.entry_points if entry.group.startswith("fcil.")]
        except Exception as error:
            _warn(f"the entry points of the package {name} cannot be read", error)
    return tuple((name, entry) for name, entries in found.items() for entry in entries)


def _warn(what: str, error: BaseException) -> None:
    warnings.warn(f"{what} ({type(error).__name__}: {error}); everything else works", PluginWarning, stacklevel=2)
