"""The state of a folder of keys: present, missing and damaged files, without private values."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding

from fcil.core.errors import ConfigError, FcilError
from fcil.core.files import exists
from fcil.deployment.keys.files import (
    BOX_KEY,
    CA,
    CA_KEY,
    NODE_KEY,
    NODE_PUBLIC,
    PROXY_PUBLIC,
    PROXY_SEED,
    SEALING_KEY,
    SECRET,
    SERVER,
    SERVER_KEY,
    SIGNING_KEY,
    SITE_KEY,
    SITE_PUBLIC,
    SITE_SEED,
    ExposedError,
    folder_warning,
    kind_of,
    provider,
    read_hex,
    read_seed,
)
from fcil.deployment.keys.make import ProxyKeys, ProxyPublic, ServerKeys, SiteKeys, read_pair, read_secret, site_name
from fcil.deployment.keys.tls import addresses_of, read_authority, read_certificate, read_private_key
from fcil.deployment.server.roster import FILE as ROSTER
from fcil.deployment.server.roster import Roster

FILES = {
    "server": (CA, CA_KEY, SERVER, SERVER_KEY, ROSTER),
    "site": (SITE_KEY, SITE_PUBLIC, SITE_SEED, BOX_KEY, CA, SECRET, PROXY_PUBLIC),
    "proxy": (NODE_KEY, NODE_PUBLIC, SEALING_KEY, SIGNING_KEY, PROXY_SEED, PROXY_PUBLIC, CA, SECRET),
}
ABSENT = {  # files that may be missing
    ("server", CA_KEY): "not here; only --renew needs it, so it may be kept elsewhere",
    ("server", ROSTER): "nobody is registered yet; `fcil federation sites add` does that",
    ("site", BOX_KEY): "not here; `fcil federation join INVITATION` makes it; only a sealed secret needs it",
    ("site", PROXY_PUBLIC): "not here; right where no proxy takes part, else the proxy's administrator sends it",
}


@dataclass(frozen=True)
class KeyStatus:
    """A line for each file of a folder of keys, and the faults that keep its owner from taking part."""

    kind: str
    lines: dict[str, str]
    faults: tuple[str, ...]


def key_status(folder: Path) -> KeyStatus:
    """Check every file that belongs in a folder of keys."""
    kind = kind_of(folder)
    if kind is None:
        raise ConfigError(
            f"{folder} holds no keys of a server, a site or the proxy; make them with `fcil federation keys`"
        )
    lines: dict[str, str] = {}
    faults: list[str] = []
    for name in FILES[kind]:
        path = folder / name
        if not exists(path):
            lines[name] = ABSENT.get((kind, name), "missing")
            faults += [] if (kind, name) in ABSENT else [f"{path} is missing; {provider(path)}"]
            continue
        try:
            lines[name] = _LOOK[name](path)
        except FcilError as error:
            lines[name] = "refused" if isinstance(error, ExposedError) else "damaged"
            faults.append(str(error))
    faults += filter(None, [folder_warning(folder)])
    return KeyStatus(kind, lines, tuple(dict.fromkeys([*faults, *_together(folder, kind)])))


def _together(folder: Path, kind: str) -> list[str]:
    """Return the faults that appear only when all files are loaded together."""
    try:
        _LOAD[kind](folder)
    except FcilError as error:
        return [str(error)]
    return []


def _authority(path: Path) -> str:
    certificate = read_authority(path)
    digest = hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()
    return f"the authority, until {certificate.not_valid_after_utc:%Y-%m-%d}, SHA-256 {digest}"


def _server(path: Path) -> str:
    certificate = read_certificate(path)
    return f"for {', '.join(addresses_of(certificate))}, until {certificate.not_valid_after_utc:%Y-%m-%d}"


def _private_key(path: Path) -> str:
    read_private_key(path)
    return "private"


def _node_key(path: Path) -> str:
    read_pair(path, path.with_suffix(".pub"))
    return "private"


def _site(path: Path) -> str:
    key = read_pair(path.with_suffix(".key"), path)
    return f"the site {site_name(path, key)}, {key.fingerprint}"


def _node(path: Path) -> str:
    return f"the proxy's node, {read_pair(path.with_suffix('.key'), path).fingerprint}"


def _half(path: Path) -> str:
    read_hex(path)
    return "private"


def _seed(path: Path) -> str:
    read_seed(path)
    return "private"


def _secret(path: Path) -> str:
    return f"private; everybody else's has the same check, {read_secret(path).check}"


def _proxy(path: Path) -> str:
    return f"the proxy, {ProxyPublic.load(path).fingerprint}"


def _roster(path: Path) -> str:
    roster = Roster.load(path.parent)
    return f"{len(roster.sites)} sites, {'a' if roster.proxy else 'no'} proxy; see `fcil federation sites list`"


_LOAD: dict[str, Callable[[Path], object]] = {
    "server": ServerKeys.load,
    "site": SiteKeys.load,
    "proxy": ProxyKeys.load,
}
_LOOK: dict[str, Callable[[Path], str]] = {
    CA: _authority,
    SERVER: _server,
    CA_KEY: _private_key,
    SERVER_KEY: _private_key,
    SITE_KEY: _node_key,
    NODE_KEY: _node_key,
    SITE_PUBLIC: _site,
    NODE_PUBLIC: _node,
    SITE_SEED: _seed,
    PROXY_SEED: _seed,
    SEALING_KEY: _half,
    SIGNING_KEY: _half,
    BOX_KEY: _half,
    SECRET: _secret,
    PROXY_PUBLIC: _proxy,
    ROSTER: _roster,
}
