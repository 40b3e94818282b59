"""The list of parties registered with a server; a running server reads it every second."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from fcil.core.errors import ConfigError, DamagedError
from fcil.core.files import exists, read_json, write_json
from fcil.core.settings_table import SettingsTable
from fcil.deployment.keys.files import PROXY, check_name, held
from fcil.deployment.keys.request import JoinRequest
from fcil.deployment.keys.ssh import PublicKey, parse_public_key, read_public_key
from fcil.deployment.server import audit_log

FILE = "roster.json"
Role = Literal["site", "proxy"]


class RosterEntry(SettingsTable):
    """A party: its number, which is never reused, its name, its role, its node's key and whether rounds include it."""

    number: int
    name: str
    public_key: str
    role: Role = "site"
    removed: bool = False
    quarantined: bool = False  # left out of rounds; files of earlier versions do not have it

    @property
    def fingerprint(self) -> str:
        """The key's fingerprint, as `ssh-keygen -l` prints it."""
        return parse_public_key(self.public_key.encode()).fingerprint


class _Document(SettingsTable):
    entries: tuple[RosterEntry, ...]


class Roster:
    """The parties of a federation; a change re-reads the file first, so concurrent changes are kept."""

    def __init__(self, folder: Path, entries: tuple[RosterEntry, ...] = ()) -> None:
        self.folder = folder
        self.entries = entries

    @classmethod
    def load(cls, folder: Path) -> Roster:
        """Return the roster in a server's key folder; it is empty before the first party is added."""
        if not folder.is_dir():
            raise ConfigError(
                f"{folder} is no folder of a server's keys; make one with `fcil federation keys server --out {folder}`"
            )
        return cls(folder, _read(folder / FILE))

    @property
    def present(self) -> tuple[RosterEntry, ...]:
        """The parties that have not been removed."""
        return tuple(entry for entry in self.entries if not entry.removed)

    @property
    def sites(self) -> tuple[RosterEntry, ...]:
        """The sites that have not been removed."""
        return tuple(entry for entry in self.present if entry.role == "site")

    @property
    def proxy(self) -> RosterEntry | None:
        """The proxy, or None."""
        return next((entry for entry in self.present if entry.role == "proxy"), None)

    def add(self, public_key_file: Path, name: str | None = None, role: Role = "site") -> RosterEntry:
        """Register a party by its public key file, by default under the name in that file."""
        key = read_public_key(public_key_file)
        called = _site_name(public_key_file, key, name) if role == "site" else _proxy_name(public_key_file, key, name)
        return self._admit(str(public_key_file), key, called, role)

    def approve(self, request: JoinRequest) -> tuple[RosterEntry, bool]:
        """Register a party by its request, and say whether it is new; one that is registered stays."""
        known = next((entry for entry in self.present if entry.public_key == request.node.text), None)
        if known is not None and (known.name, known.role) == (request.name, request.role):
            return known, False
        return self._admit(f"the key of {request.name}", request.node, request.name, request.role, "approved"), True

    def _admit(self, source: str, key: PublicKey, name: str, role: Role, event: str = "added") -> RosterEntry:
        with held(self.folder):
            self.entries = _read(self.folder / FILE)
            self._check_new(source, key, name, role)
            entry = RosterEntry(number=len(self.entries), name=name, public_key=key.text, role=role)
            audit_log.note(self.folder, event, name=name, number=entry.number, fingerprint=entry.fingerprint)
            self._write((*self.entries, entry))
        return entry

    def remove(self, name: str) -> RosterEntry:
        """Remove a party; its number and its key stay in the file and are never used again."""
        return self._change(name, "removed", {"removed": True})

    def quarantine(self, name: str, begins: bool = True) -> RosterEntry:
        """Leave a site out of rounds, or end that; it stays registered. The proxy cannot be left out."""
        if name == PROXY:
            raise ConfigError(
                f"{PROXY} cannot be put in quarantine: rounds need it; remove it with `fcil federation sites remove`"
            )
        return self._change(name, "quarantined" if begins else "out of quarantine", {"quarantined": begins})

    def _change(self, name: str, event: str, update: dict[str, bool]) -> RosterEntry:
        with held(self.folder):
            self.entries = _read(self.folder / FILE)
            entry = next((entry for entry in self.present if entry.name == name), None)
            if entry is None:
                names = ", ".join(one.name for one in self.present) or "nobody"
                raise ConfigError(f"{name} is not registered in {self.folder / FILE}; there is {names}")
            changed = entry.model_copy(update=update)
            audit_log.note(self.folder, event, name=name, number=entry.number)
            self._write(tuple(changed if one is entry else one for one in self.entries))
        return changed

    def _check_new(self, source: str, key: PublicKey, name: str, role: Role) -> None:
        if role == "proxy" and self.proxy is not None:
            raise ConfigError(
                f"there is a proxy already ({self.proxy.fingerprint}), and there can be one; "
                f"remove it first with `fcil federation sites remove {PROXY} --keys {self.folder}`"
            )
        for entry in self.present:
            if entry.name.lower() == name.lower():  # on some systems these would be the same folder
                raise ConfigError(f"a site named {entry.name} is registered already; give this one another --name")
        for entry in self.entries:
            if entry.public_key == key.text:
                fate = "was the key of {}, which was removed" if entry.removed else "is the key of {} already"
                raise ConfigError(f"{source} {fate.format(entry.name)}; every party needs a new key of its own")

    def _write(self, entries: tuple[RosterEntry, ...]) -> None:
        write_json(self.folder / FILE, _Document(entries=entries).model_dump(mode="json"))
        self.entries = entries


def _site_name(path: Path, key: PublicKey, name: str | None) -> str:
    if name is None and key.comment == PROXY:
        raise ConfigError(f"{path} is the proxy's key; add it with --proxy")
    if name is None and not key.comment:
        raise ConfigError(f"{path} has no name behind its key; give it one with --name")
    return check_name(key.comment if name is None else name)


def _proxy_name(path: Path, key: PublicKey, name: str | None) -> str:
    if name not in (None, PROXY):
        raise ConfigError(f"--name {name}: a proxy is always called {PROXY}; leave out --name or --proxy")
    if key.comment != PROXY:
        raise ConfigError(
            f"{path} is the key of {key.comment or 'nobody in particular'}, not of the proxy; "
            "its file is the node.pub of `fcil federation keys proxy`"
        )
    return PROXY


def _read(path: Path) -> tuple[RosterEntry, ...]:
    if not exists(path):
        return ()
    try:
        entries = _Document.model_validate(read_json(path)).entries
        for number, entry in enumerate(entries):
            if entry.number != number:
                raise ValueError(f"its party {number} has the number {entry.number}")
            parse_public_key(entry.public_key.encode())
            if entry.role == "site":
                check_name(entry.name)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise DamagedError(f"{path} is damaged: {place}: {first['msg']}") from error
    except (ValueError, ConfigError) as error:
        raise DamagedError(f"{path} is damaged: {error}") from error
    return entries
