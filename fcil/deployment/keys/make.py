"""Making and loading the keys of server, sites and proxy, each on its owner's machine."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from fcil.core.errors import ConfigError, DamagedError
from fcil.core.files import exists, read_json, seal_json, write_atomically
from fcil.deployment.keys.files import (
    BOX_KEY,
    CA,
    CA_KEY,
    NODE_KEY,
    NODE_PUBLIC,
    PROXY,
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
    check_kind,
    check_name,
    damaged,
    dump_hex,
    held,
    kind_of,
    make_seed,
    read_hex,
    read_key,
    read_seed,
    write_new,
)
from fcil.deployment.keys.sealing import (
    KEY_SIZE,
    Secret,
    make_sealing_key,
    make_signing_key,
    public_sealing_key,
    public_signing_key,
)
from fcil.deployment.keys.ssh import PublicKey, make_node_key, public_half, read_public_key
from fcil.deployment.keys.tls import (
    addresses_of,
    check_issued,
    check_pair,
    check_valid,
    issue,
    make_authority,
    make_key,
    parse_addresses,
    read_authority,
    read_certificate,
    read_private_key,
    timestamp,
)

_HEX = re.compile(rf"[0-9a-f]{{{2 * KEY_SIZE}}}")


# --- the consortium's secret --------------------------------------------------------------------------------------


def make_secret(path: Path) -> None:
    """Write a new consortium secret; the server's folder is refused."""
    if kind_of(path.parent) == "server":
        raise ConfigError(
            f"{path.parent} holds the keys of a server, which must never have the secret; name another --out"
        )
    with held(path.parent):
        write_new(path.parent, {path.name: dump_hex(Secret.random().value)})


def read_secret(path: Path) -> Secret:
    """Return the consortium's secret in a file."""
    return Secret(read_hex(path))


# --- the server ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServerKeys:
    """The certificate, private key and authority of a server, checked."""

    ca: Path
    certificate: Path
    private_key: Path
    addresses: tuple[str, ...]
    expires: datetime

    @classmethod
    def load(cls, folder: Path) -> ServerKeys:
        """Return the keys in a server's folder; ca.key may be kept elsewhere."""
        if exists(folder / SECRET):
            raise ConfigError(f"{folder / SECRET} must not be at a server, which could guess classes by it; remove it")
        authority = read_authority(folder / CA)
        certificate = read_certificate(folder / SERVER)
        check_issued(folder / SERVER, certificate, authority)
        check_valid(folder / SERVER, certificate, f"renew it with `fcil federation keys server --renew --out {folder}`")
        check_pair(folder / SERVER_KEY, read_private_key(folder / SERVER_KEY), certificate)
        return cls(
            ca=folder / CA,
            certificate=folder / SERVER,
            private_key=folder / SERVER_KEY,
            addresses=addresses_of(certificate),
            expires=certificate.not_valid_after_utc,
        )


def make_server_keys(folder: Path, addresses: Iterable[str], now: datetime | None = None) -> None:
    """Write a new authority and a certificate for a server at these addresses."""
    names = parse_addresses(addresses)
    check_kind(folder, "server")
    if exists(folder / CA_KEY):
        raise ConfigError(
            f"{folder / CA_KEY} exists, and a key is never overwritten; use --renew for a new certificate under it, "
            "or name another --out"
        )
    authority_key, key = make_key(), make_key()
    authority = make_authority(authority_key, timestamp(now))
    certificate = issue(authority, authority_key, key, names, timestamp(now))
    with held(folder):
        write_new(folder, {CA: authority, CA_KEY: authority_key, SERVER: certificate, SERVER_KEY: key})


def renew_server_certificate(folder: Path, addresses: Iterable[str] = (), now: datetime | None = None) -> None:
    """Replace a server's certificate by a new one under the same authority, by default for the same addresses.

    Its private key is kept, so that a kill at any moment leaves a pair that works; a missing one is made.
    """
    authority = read_authority(folder / CA, now)
    authority_key = read_private_key(folder / CA_KEY)
    check_pair(folder / CA_KEY, authority_key, authority)
    names = parse_addresses([*addresses] or _former_addresses(folder))
    with held(folder):
        if not exists(folder / SERVER_KEY):
            write_new(folder, {SERVER_KEY: make_key()})
        key = read_private_key(folder / SERVER_KEY)
        write_atomically(folder / SERVER, issue(read_key(folder / CA), authority_key, key, names, timestamp(now)))


def _former_addresses(folder: Path) -> tuple[str, ...]:
    try:
        return addresses_of(read_certificate(folder / SERVER))
    except DamagedError as error:
        raise ConfigError(
            f"{folder / SERVER} does not say for which addresses to renew; name them by --address"
        ) from error


# --- a site -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProxyPublic:
    """The proxy's public keys, with which sites seal uploads and verify its choices."""

    sealing: bytes
    signing: bytes

    @classmethod
    def load(cls, path: Path) -> ProxyPublic:
        """Return the keys in the proxy's document."""
        read_key(path)
        try:
            document = read_json(path)
        except DamagedError as error:
            raise damaged(path, "it is not the document that `fcil federation keys proxy` wrote") from error
        values = [document.get(name) for name in ("sealing", "signing")]
        if len(document) != len(values) or not all(
            isinstance(value, str) and _HEX.fullmatch(value) for value in values
        ):
            raise damaged(path, f"it should hold sealing and signing, {2 * KEY_SIZE} hexadecimal digits each")
        return cls(*(bytes.fromhex(str(value)) for value in values))

    def document(self) -> bytes:
        """Return the content of the proxy's public document."""
        return seal_json({"sealing": self.sealing.hex(), "signing": self.signing.hex()})

    @property
    def fingerprint(self) -> str:
        """A short text to compare two copies of the document."""
        digest = hashlib.sha256(self.sealing + self.signing).digest()
        return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


@dataclass(frozen=True)
class SiteKeys:
    """The keys of a site: its own and the ones from other parties."""

    name: str
    private_key: Path
    public_key: str
    ca: Path | None  # None: the server is believed without a certificate
    secret: Secret
    proxy: ProxyPublic | None  # None: this federation has none
    root: int = field(repr=False)

    @classmethod
    def load(cls, folder: Path, insecure: bool = False) -> SiteKeys:
        """Return the keys in a site's folder; an insecure connection needs no ca.crt."""
        public = read_pair(folder / SITE_KEY, folder / SITE_PUBLIC)
        return cls(
            name=site_name(folder / SITE_PUBLIC, public),
            private_key=folder / SITE_KEY,
            public_key=public.text,
            ca=None if insecure else _authority(folder),
            secret=read_secret(folder / SECRET),
            proxy=ProxyPublic.load(folder / PROXY_PUBLIC) if exists(folder / PROXY_PUBLIC) else None,
            root=read_seed(folder / SITE_SEED),
        )


def make_site_keys(folder: Path, name: str) -> None:
    """Write a new node key and a random root for a site."""
    private, public = make_node_key(check_name(name))
    box = dump_hex(make_sealing_key())
    check_kind(folder, "site")
    with held(folder):
        write_new(folder, {SITE_KEY: private, SITE_PUBLIC: public, SITE_SEED: make_seed(), BOX_KEY: box})


def add_box_key(folder: Path) -> None:
    """Write the key of a site for which the secret is sealed, if its keys are of a release that made none."""
    if not exists(folder / BOX_KEY):
        with held(folder):
            write_new(folder, {BOX_KEY: dump_hex(make_sealing_key())})


# --- the proxy ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProxyKeys:
    """The keys of the proxy: its own and the ones from other parties."""

    private_key: Path
    public_key: str
    ca: Path | None  # None: the server is believed without a certificate
    secret: Secret
    sealing: bytes = field(repr=False)
    signing: bytes = field(repr=False)
    public: ProxyPublic
    root: int = field(repr=False)

    @classmethod
    def load(cls, folder: Path, insecure: bool = False) -> ProxyKeys:
        """Return the keys in the proxy's folder; an insecure connection needs no ca.crt."""
        public, node, private = cls.own(folder)
        return cls(
            private_key=private,
            public_key=node.text,
            ca=None if insecure else _authority(folder),
            secret=read_secret(folder / SECRET),
            sealing=read_hex(folder / SEALING_KEY),
            signing=read_hex(folder / SIGNING_KEY),
            public=public,
            root=read_seed(folder / PROXY_SEED),
        )

    @staticmethod
    def own(folder: Path) -> tuple[ProxyPublic, PublicKey, Path]:
        """Return the public keys that the proxy has made, and the private one of its node."""
        public = ProxyPublic.load(folder / PROXY_PUBLIC)
        if public != proxy_public(read_hex(folder / SEALING_KEY), read_hex(folder / SIGNING_KEY)):
            raise damaged(folder / PROXY_PUBLIC, f"it does not belong to {SEALING_KEY} and {SIGNING_KEY}")
        return public, read_pair(folder / NODE_KEY, folder / NODE_PUBLIC), folder / NODE_KEY


def make_proxy_keys(folder: Path) -> None:
    """Write a new node key, the proxy's own two keys with their public document, and a random root."""
    private, public = make_node_key(PROXY)
    sealing, signing = make_sealing_key(), make_signing_key()
    check_kind(folder, "proxy")
    with held(folder):
        write_new(
            folder,
            {
                NODE_KEY: private,
                NODE_PUBLIC: public,
                SEALING_KEY: dump_hex(sealing),
                SIGNING_KEY: dump_hex(signing),
                PROXY_SEED: make_seed(),
                PROXY_PUBLIC: proxy_public(sealing, signing).document(),
            },
        )


def proxy_public(sealing: bytes, signing: bytes) -> ProxyPublic:
    """Return the public halves of the proxy's two private keys."""
    return ProxyPublic(public_sealing_key(sealing), public_signing_key(signing))


# --- shared by site and proxy -------------------------------------------------------------------------------------


def read_pair(private: Path, public: Path) -> PublicKey:
    """Return a node's public key, or raise a DamagedError if its private key does not match."""
    content, _ = read_key(private), read_key(public)
    try:
        half = public_half(content)
    except ValueError as error:
        raise damaged(private, "it is no EC private key in OpenSSH format without a passphrase") from error
    try:
        key = read_public_key(public)
    except ConfigError as error:
        raise damaged(public, str(error)) from error
    if key.text != half:
        raise damaged(public, f"it does not belong to {private.name}")
    return key


def site_name(path: Path, public: PublicKey) -> str:
    """Return the name in the comment of a site's public key."""
    try:
        return check_name(public.comment)
    except ConfigError as error:
        raise damaged(path, f"behind its key should stand the site's name, but {error}") from error


def _authority(folder: Path) -> Path:
    read_authority(folder / CA)
    return folder / CA
