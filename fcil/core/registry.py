"""Registries: members of one kind by name, from a folder of this package and from other packages' entry points."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint
from typing import Generic, Protocol, TypeVar

from fcil.core.errors import ConfigError
from fcil.core.settings_table import NoSettings, SettingsTable

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")  # it becomes a part of settings and of directories
SCRIPT = "__main__"  # the module of a script's or a notebook's definitions, which no other process can import
OURS = "fcil"


class PluginWarning(UserWarning):
    """A member of another package cannot be used; everything else can."""


class Registered(Protocol):
    """The part of a member that its registry reads."""

    @property
    def name(self) -> str:
        """Return the name it is chosen by."""
        ...

    @property
    def summary(self) -> str:
        """Return one line for lists."""
        ...

    @property
    def module(self) -> str:
        """Return the module that registers it."""
        ...

    @property
    def settings(self) -> type[SettingsTable]:
        """Return its own settings."""
        ...


Item = TypeVar("Item", bound=Registered)
Build = TypeVar("Build")


@dataclass(frozen=True)
class Member(Generic[Build]):
    """A member of a registry: its name, one line on it, and its factory, which takes its settings.

    `requires` names a module that must be installed before it is built, and `remedy` says how to install it. A file
    that registers a member with such a requirement imports that module inside `build`, so that listing stays cheap.
    """

    name: str
    summary: str
    build: Build
    settings: type[SettingsTable] = NoSettings
    requires: str | None = None
    remedy: str = ""

    @property
    def module(self) -> str:
        """Return the module that registers it."""
        return home_of(self.build)

    def require(self, key: str) -> None:
        """Raise a ConfigError, under the key that chose the member, unless its requirement is installed."""
        if self.requires is not None and not is_installed(self.requires):
            raise ConfigError(f"{key}: {self.requires} is not installed; {self.remedy}")


@dataclass(frozen=True)
class MemberRow:
    """One line of `fcil list KIND`."""

    name: str
    summary: str
    package: str  # that it comes from
    settings: tuple[str, ...]  # keys of its own table


class Registry(Mapping[str, Item]):
    """The members of one kind, sorted by name.

    Members are found on first use: every module of our folder for the kind is imported, then every module that a
    package names in the kind's group of entry points. An entry point that fails is a `PluginWarning` and no more.
    """

    def __init__(self, what: str, folder: str, group: str, check: Callable[[Item], None] | None = None) -> None:
        self.what, self.folder, self.group = what, folder, group
        self._check = check
        self._members: dict[str, Item] = {}
        self._reserved: frozenset[str] = frozenset()
        self._found_ours = self._found_others = False

    def __getitem__(self, name: str) -> Item:
        self._find()
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        self._find()
        return iter(sorted(self._members))

    def __len__(self) -> int:
        self._find()
        return len(self._members)

    def register(self, member: Item) -> None:
        """Add a member under a name that no other one has.

        A script or a notebook may register its own member anew, as it does when a cell is run again.
        """
        if not self._is_ours(member.module):
            self._find_ours()  # so that a name of ours is refused whenever ours are needed
        if not NAME.fullmatch(member.name) or member.name in self._reserved:
            other = " and another name than a setting" if member.name in self._reserved else ""
            raise ConfigError(
                f"{member.name!r} is no name of {_article(self.what)}; use letters, digits, - and _{other}"
            )
        taken = self._members.get(member.name)
        if taken is not None and (member.module, taken.module) != (SCRIPT, SCRIPT):
            raise ConfigError(f"two {self.what}s are called {member.name}; choose another name")
        if self._check is not None:
            self._check(member)
        if not isinstance(member.settings, type) or not issubclass(member.settings, SettingsTable):
            raise ConfigError(f"the settings of {member.name} are {member.settings!r}, should be a SettingsTable")
        self._members[member.name] = member

    def reserve(self, names: Iterable[str]) -> None:
        """Refuse these names from now on: they are settings of the table that holds the members' own tables."""
        self._reserved = frozenset(names)

    def one_of(self, name: str, *others: str) -> str:
        """Return the part of a sentence that names all members, and the closest match for a wrong name."""
        known = sorted([*self, *others])
        hint = difflib.get_close_matches(name, known, 1)
        return f"one of: {', '.join(known)}" + (f"; did you mean {hint[0]}?" if hint else "")

    def rows(self) -> list[MemberRow]:
        """Return one line for each member."""
        return [
            MemberRow(name, member.summary, self.package_of(name), tuple(member.settings.settings()))
            for name, member in self.items()
        ]

    def package_of(self, name: str) -> str:
        """Return the package that a member comes from; `__main__` for a script's."""
        module = self[name].module
        root = module.partition(".")[0]
        if self._is_ours(module):
            return OURS
        named = (package for package, entry in entry_points() if entry.module.partition(".")[0] == root)
        return next(named, root)

    def _is_ours(self, module: str) -> bool:
        return module == self.folder or module.startswith(f"{self.folder}.")

    def _find(self) -> None:
        self._find_ours()
        if not self._found_others:
            self._found_others = True
            self._load_plugins()

    def _find_ours(self) -> None:
        if not self._found_ours:
            self._found_ours = True
            for module in pkgutil.iter_modules(importlib.import_module(self.folder).__path__):
                importlib.import_module(f"{self.folder}.{module.name}")

    def _load_plugins(self) -> None:
        for package, entry in entry_points():
            if entry.group != self.group:
                continue
            before = dict(self._members)
            try:
                entry.load()
            except (Exception, SystemExit) as error:  # a module may do anything when it is imported
                self._members = before
                named = f"{package}, entry point {entry.name} = {entry.value}"
                _warn(f"the {self.what}s of the package {named}, are left out", error)


def _article(what: str) -> str:
    return f"{'an' if what[0] in 'aeiou' else 'a'} {what}"


def home_of(build: object) -> str:
    """Return the module that defines a function or a class."""
    function = getattr(build, "func", build)  # behind a functools.partial
    return str(getattr(function, "__module__", None) or type(function).__module__)


def is_installed(module: str) -> bool:
    """Say whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # a module that was put in place by hand has no spec
        return True


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
