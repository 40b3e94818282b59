"""The keys of Flower's nodes: ECDSA on P-384, in OpenSSH's format."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fcil.core.errors import ConfigError
from fcil.core.files import read_bytes

KINDS = ("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521")  # the curves that Flower accepts
RIGHT = "it should be one line that begins with ecdsa-sha2-nistp384, as in the site.pub of `fcil federation keys site`"


@dataclass(frozen=True)
class PublicKey:
    """A node's public key: its canonical text, and the comment of its file."""

    text: str
    comment: str

    @property
    def fingerprint(self) -> str:
        """The key's fingerprint, as `ssh-keygen -l` prints it."""
        digest = hashlib.sha256(base64.b64decode(self.text.split()[1])).digest()
        return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def make_node_key(comment: str) -> tuple[bytes, bytes]:
    """Return the contents of the private and the public file of a new key."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return private, f"{_text(key.public_key())} {comment}\n".encode()


def read_public_key(path: Path) -> PublicKey:
    """Return the key in a public key file; a ConfigError says what the file is instead."""
    content = read_bytes(path)
    if b"PRIVATE KEY" in content:
        raise ConfigError(f"{path} is a private key: never send this file to anybody; send the .pub beside it")
    if content.lstrip().startswith(b"{"):
        raise ConfigError(
            f"{path} is a document for the sites, no key of a node; the proxy's is the node.pub beside it"
        )
    try:
        return parse_public_key(content)
    except ValueError as error:
        raise ConfigError(f"{path} is no EC public key in OpenSSH format ({error}); {RIGHT}") from error


def parse_public_key(content: bytes) -> PublicKey:
    """Return the key in one line of OpenSSH's format, or raise a ValueError."""
    line = content.decode("utf-8").strip()  # a UnicodeDecodeError is a ValueError
    if not line:
        raise ValueError("it is empty")
    if len(line.splitlines()) > 1:
        raise ValueError(f"it has {len(line.splitlines())} lines")
    kind, *rest = line.split(maxsplit=2)
    if kind not in KINDS:
        raise ValueError(f"it begins with {kind[:40]!r}")
    try:
        key = load_ssh_public_key(line.encode())
    except (UnsupportedAlgorithm, NotImplementedError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError(f"it is a {type(key).__name__}")
    return PublicKey(_text(key), rest[1] if len(rest) > 1 else "")


def public_half(private: bytes) -> str:
    """Return the public text of a private key without a passphrase, or raise a ValueError."""
    try:
        key = load_ssh_private_key(private, password=None)
    except (UnsupportedAlgorithm, NotImplementedError, TypeError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"it is a {type(key).__name__}")
    return _text(key.public_key())


def _text(key: ec.EllipticCurvePublicKey) -> str:
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
