"""Epochs: a server that was restored from a backup begins a new one, and its parties check the server's signature.

A party goes on from its own present state at the server's round. Without an epoch it would refuse a server that is
behind it, since it answers a round for one model alone.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fcil.core.errors import ConfigError, DamagedError, FederationError
from fcil.deployment.keys.make import ServerKeys
from fcil.deployment.keys.tls import check_issued, parse_certificate, read_authority, sign
from fcil.deployment.transport.messages import Epoch, Terms, as_bytes, as_tensor

AHEAD = 300  # seconds by which the clocks of server and party may differ


def new_epoch(federation: str, round: int, former: Epoch | None, keys: Path | None) -> Epoch:
    """Return the epoch that begins now after a round, signed with the key in a server's folder of keys."""
    began = int(time.time())
    if former is not None and began <= former.began:
        raise ConfigError(
            f"this machine's clock says {when(began)}, and the last epoch of this federation began "
            f"{when(former.began)}; set the clock"
        )
    if keys is None:
        return Epoch(began, round, as_tensor(b""), as_tensor(b""))
    own = ServerKeys.load(keys)
    signature = sign(own.private_key, _content(federation, began, round))
    return Epoch(began, round, as_tensor(own.certificate.read_bytes()), as_tensor(signature))


def check_epoch(terms: Terms, known: int, authority: Path | None) -> None:
    """Refuse an epoch that is older than the known one, in the future, or not signed by a server of the authority."""
    epoch = terms.epoch
    if epoch is None or epoch.began < known:
        raise FederationError(
            f"the server goes on where it was before the epoch that began {when(known)}; a server that was restored "
            "from a backup starts with --restored"
        )
    if epoch.began > time.time() + AHEAD:
        raise FederationError(f"the server's epoch begins in the future, {when(epoch.began)}; its clock is wrong")
    if epoch.round < 0:
        raise FederationError(f"the server's epoch begins after round {epoch.round}")
    if authority is not None and not _is_signed(terms.federation, epoch, authority):
        raise FederationError("the server's epoch does not carry the signature of a server of this federation")


def _is_signed(federation: str, epoch: Epoch, authority: Path) -> bool:
    """Say whether a server with a certificate of the authority has signed an epoch."""
    try:
        certificate = parse_certificate(as_bytes(epoch.certificate), authority)
        check_issued(authority, certificate, read_authority(authority))
        key = certificate.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        content = _content(federation, epoch.began, epoch.round)
        key.verify(as_bytes(epoch.signature), content, ec.ECDSA(hashes.SHA256()))
    except (DamagedError, InvalidSignature):
        return False
    return True


def when(seconds: float) -> str:
    """Return a time for people.

    >>> when(0)
    '1970-01-01T00:00:00+00:00'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _content(federation: str, began: int, round: int) -> bytes:
    return f"fcil epoch\n{federation}\n{began}\n{round}".encode()
