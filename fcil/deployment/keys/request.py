"""A party's request to be admitted: one line with its name and its public keys, signed by its node's key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fcil.core.errors import ConfigError
from fcil.deployment.keys.files import (
    BOX_KEY,
    PROXY,
    SITE_KEY,
    SITE_PUBLIC,
    check_name,
    read_hex,
    read_key,
)
from fcil.deployment.keys.lines import dump_bytes, dump_line, find_lines, load_bytes, spoken
from fcil.deployment.keys.make import ProxyKeys, ProxyPublic, read_pair, site_name
from fcil.deployment.keys.sealing import KEY_SIZE, public_sealing_key
from fcil.deployment.keys.ssh import PublicKey, parse_public_key

TAG = "fcil-request-1"
CURVE, HASH = ec.SECP384R1, hashes.SHA384  # of the nodes' keys that `fcil` makes


@dataclass(frozen=True)
class JoinRequest:
    """The name, role and public keys of a party, and the digest of the terms that its owner has accepted."""

    role: Literal["site", "proxy"]
    name: str
    node: PublicKey
    sealing: bytes  # with which other sites seal the consortium's secret for it
    signing: bytes  # of a proxy; empty for a site
    terms: str
    signature: bytes

    @property
    def fingerprint(self) -> str:
        """A short text over all of it, which people compare by voice."""
        return spoken(_signed(self.fields[:-1]))

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the fields of the line, the signature last."""
        keys = (_point(self.node), self.sealing, self.signing)
        return self.role, self.name, *map(dump_bytes, keys), self.terms, dump_bytes(self.signature)

    @property
    def line(self) -> str:
        """Return the request as people send it."""
        return dump_line(TAG, self.fields)

    @property
    def proxy(self) -> ProxyPublic | None:
        """Return the proxy's public keys; None for a site."""
        return ProxyPublic(self.sealing, self.signing) if self.role == "proxy" else None


def site_request(folder: Path, terms: str) -> JoinRequest:
    """Return the request of a site, from its folder of keys."""
    node = read_pair(folder / SITE_KEY, folder / SITE_PUBLIC)
    name, box = site_name(folder / SITE_PUBLIC, node), public_sealing_key(read_hex(folder / BOX_KEY))
    return _sign(JoinRequest("site", name, node, box, b"", terms, b""), folder / SITE_KEY)


def proxy_request(folder: Path, terms: str) -> JoinRequest:
    """Return the proxy's request, from its folder of keys."""
    public, node, key = ProxyKeys.own(folder)
    return _sign(JoinRequest("proxy", PROXY, node, public.sealing, public.signing, terms, b""), key)


def read_requests(given: Sequence[str], option: str = "REQUEST") -> list[JoinRequest]:
    """Return the requests in lines or files, each once; a ConfigError says what is wrong with one."""
    found: dict[str, JoinRequest] = {}
    for text in given:
        for fields in find_lines(TAG, text, option):
            try:
                request = _read(fields)
            except (ValueError, ConfigError, InvalidSignature) as error:
                why = "its signature is not that of its key" if isinstance(error, InvalidSignature) else error
                raise ConfigError(
                    f"{option}: the request of {fields[1][:64] if len(fields) > 1 else 'nobody'!r} is damaged: {why}; "
                    "let its people send it again"
                ) from error
            found[request.fingerprint] = request
    names = [request.name.lower() for request in found.values()]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{option}: there are two requests of {name} with different keys; ask its people")
    return list(found.values())


def _read(fields: tuple[str, ...]) -> JoinRequest:
    """Return the request in the fields of a line; it is signed by its own key."""
    if len(fields) != 7:
        raise ValueError(f"it has {len(fields)} fields, not 7")
    role, name, point, sealing, signing, terms, signature = fields
    boxes, kind = (load_bytes(sealing), load_bytes(signing)), "proxy" if role == "proxy" else "site"
    if role not in ("site", "proxy") or tuple(map(len, boxes)) != (KEY_SIZE, KEY_SIZE if role == "proxy" else 0):
        raise ValueError("it has not the keys of a site or of the proxy")
    if (role == "proxy" and name != PROXY) or len(terms) > 64 or not terms.isalnum():
        raise ValueError("its name or its terms cannot be")
    name = PROXY if role == "proxy" else check_name(name)
    key = ec.EllipticCurvePublicKey.from_encoded_point(CURVE(), load_bytes(point))
    key.verify(load_bytes(signature), _signed(fields[:-1]), ec.ECDSA(HASH()))
    text = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    node = parse_public_key(text + f" {name}".encode())
    return JoinRequest("proxy" if kind == "proxy" else "site", name, node, *boxes, terms, load_bytes(signature))


def _sign(request: JoinRequest, private: Path) -> JoinRequest:
    key = load_ssh_private_key(read_key(private), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # read_pair has seen it
    signature = key.sign(_signed(request.fields[:-1]), ec.ECDSA(HASH()))
    fields = request.fields[:-1]
    return _read((*fields, dump_bytes(signature)))


def _signed(fields: Sequence[str]) -> bytes:
    return f"{TAG}\n{':'.join(fields)}".encode()


def _point(node: PublicKey) -> bytes:
    key = load_ssh_public_key(node.text.encode())
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, CURVE):
        raise ConfigError("a request needs a node's key on the curve P-384, as `fcil federation keys` makes it")
    return key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
