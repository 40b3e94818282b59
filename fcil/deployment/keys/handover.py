"""The consortium's secret on its way from one site to another: sealed for one party, so that it may go by mail."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fcil.core.errors import ConfigError
from fcil.core.files import exists
from fcil.deployment.keys.files import (
    BOX_KEY,
    PROXY,
    PROXY_PUBLIC,
    SEALING_KEY,
    SECRET,
    SITE_KEY,
    SITE_PUBLIC,
    dump_hex,
    held,
    kind_of,
    read_hex,
    write_new,
)
from fcil.deployment.keys.lines import dump_bytes, dump_line, find_lines, load_bytes
from fcil.deployment.keys.make import ProxyPublic, make_secret, read_pair, read_secret, site_name
from fcil.deployment.keys.request import JoinRequest
from fcil.deployment.keys.sealing import KEY_SIZE, SealError, Secret, seal, unseal

TAG = "fcil-secret-1"
STEP = 64  # bytes; the content has nearly always the same length


@dataclass(frozen=True)
class Handover:
    """The secret, and the public keys of the proxy, if there is one."""

    secret: Secret
    proxy: ProxyPublic | None


def own_name(folder: Path) -> str:
    """Return the name of the site or proxy whose keys a folder holds; others have no part in the secret."""
    kind = kind_of(folder)
    if kind not in ("site", "proxy"):
        found = f"holds the keys of a {kind}" if kind else "holds no keys"
        raise ConfigError(f"{folder} {found}; the secret is handed over by a site, from its own folder of keys")
    public = folder / SITE_PUBLIC
    return PROXY if kind == "proxy" else site_name(public, read_pair(folder / SITE_KEY, public))


def sealed_lines(folder: Path, requests: list[JoinRequest]) -> dict[str, str]:
    """Return a line for each party other than our own, with the secret in a site's folder, which is made if need be.

    The proxy's public keys go along; they are kept in the folder if its request is here.
    """
    name = own_name(folder)
    for request in requests:
        if request.proxy is not None and name != PROXY:
            _keep(folder, PROXY_PUBLIC, request.proxy.document(), request.proxy.fingerprint)
    if not exists(folder / SECRET):
        make_secret(folder / SECRET)
    proxy = ProxyPublic.load(folder / PROXY_PUBLIC) if exists(folder / PROXY_PUBLIC) else None
    content = json.dumps(
        {
            "secret": read_secret(folder / SECRET).value.hex(),
            "proxy": [] if proxy is None else [proxy.sealing.hex(), proxy.signing.hex()],
        }
    ).encode()
    return {
        request.name: dump_line(TAG, (request.name, dump_bytes(seal(content, request.sealing, STEP))))
        for request in requests
        if request.name != name
    }


def opened(folder: Path, given: str, option: str) -> Handover:
    """Return the content of the line for the party whose keys a folder holds; other parties' lines are passed over."""
    name = own_name(folder)
    private = read_hex(folder / (SEALING_KEY if name == PROXY else BOX_KEY))
    lines = [fields for fields in find_lines(TAG, given, option) if fields[0] == name and len(fields) == 2]
    if not lines:
        raise ConfigError(f"{option}: no sealed secret is for {name}; ask the site that sealed it")
    try:
        document = json.loads(unseal(load_bytes(lines[-1][1]), private))
        keys = [bytes.fromhex(key) for key in document["proxy"]]
        if len(keys) not in (0, 2) or any(len(key) != KEY_SIZE for key in keys):
            raise ValueError("the proxy's keys are not two")
        return Handover(Secret(bytes.fromhex(document["secret"])), ProxyPublic(*keys) if keys else None)
    except (SealError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{option}: the sealed secret for {name} does not open ({error}); let it be sealed anew"
        ) from error


def keep(folder: Path, found: Handover) -> None:
    """Write a received secret and the proxy's keys into a folder of keys; others that are there stay."""
    if found.proxy is not None:
        _keep(folder, PROXY_PUBLIC, found.proxy.document(), found.proxy.fingerprint)
    _keep(folder, SECRET, dump_hex(found.secret.value), found.secret.check)


def _keep(folder: Path, name: str, content: bytes, mark: str) -> None:
    """Write a file unless the same is there."""
    with held(folder):
        if not exists(folder / name):
            write_new(folder, {name: content})
            return
    there = read_secret(folder / name).check if name == SECRET else ProxyPublic.load(folder / name).fingerprint
    if there != mark:
        raise ConfigError(f"{folder / name} is another one ({there}, received {mark}); it stays as it is")
