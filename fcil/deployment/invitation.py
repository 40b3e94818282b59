"""An invitation to a federation: one file with the server's address, its authority and its terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding

from fcil.core.errors import ConfigError, DamagedError, FcilError, one_line
from fcil.core.files import exists, read_bytes, read_json, seal_json, write_atomically
from fcil.core.net import split_address
from fcil.deployment.keys.files import CA, check_kind, held
from fcil.deployment.keys.lines import spoken
from fcil.deployment.keys.tls import parse_authority, read_authority
from fcil.deployment.party_limits import LONGEST_RECIPE, PartyLimits, agreeable
from fcil.deployment.terms_in_words import in_words
from fcil.deployment.transport.messages import Terms

FILE = "invitation.json"
VERSION = 1
LARGEST = 4 * LONGEST_RECIPE  # bytes of a file


@dataclass(frozen=True)
class Invitation:
    """The address at which sites call the server, the certificate of its authority, and the terms."""

    server: str
    authority: str  # PEM
    terms: Terms  # without the federation's name, which is drawn when the server starts

    @property
    def fingerprint(self) -> str:
        """A short text over all of it, which people compare by voice."""
        certificate = parse_authority(self.authority.encode(), Path(FILE))
        facts = (self.server, certificate.public_bytes(Encoding.DER).hex(), self.terms.digest)
        return spoken("\n".join(facts).encode())

    @property
    def document(self) -> bytes:
        """Return the content of the file."""
        recipe = {"recipe": self.terms.recipe, "backbone": self.terms.backbone, "rounds": self.terms.rounds}
        facts = {"server": self.server, "ca": self.authority, "terms": self.terms.digest, **recipe}
        return seal_json({"fcil_invitation": VERSION, "fingerprint": self.fingerprint, **facts})

    def words(self, limits: PartyLimits) -> list[str]:
        """Return the invitation for people, or raise an error if its terms are beyond the party's limits."""
        _, *lines = in_words(self.terms, agreeable(self.terms, limits), limits)
        told = f"{self.server}, terms {self.terms.digest}; fingerprint of the invitation: {self.fingerprint}"
        return [f"{'invited by':10}  {told}", *lines]

    @classmethod
    def load(cls, path: Path) -> Invitation:
        """Return the invitation in a file; it comes by mail, and may be anything."""
        try:
            if exists(path) and path.stat().st_size > LARGEST:
                raise ValueError(f"it has more than {LARGEST} bytes")
            document = read_json(path)
            version = document.get("fcil_invitation")
            if version != VERSION:
                raise ValueError(f"its version is {str(version)[:20]}, here {VERSION}; install the same release")
            texts = [str(document[key]) for key in ("server", "ca", "recipe", "backbone")]
            found = cls(texts[0], texts[1], Terms("", texts[2], texts[3], int(document["rounds"])))
            split_address(found.server, "server")
            if one_line(found.server) != found.server:
                raise ValueError("its address cannot be printed")
            if (document["terms"], document["fingerprint"]) != (found.terms.digest, found.fingerprint):
                raise ValueError("its fingerprint is not that of its content")
        except (ValueError, KeyError, TypeError, DamagedError, ConfigError) as error:
            raise ConfigError(
                f"{path} is no invitation that `fcil federation init` has written: {one_line(str(error))}"
            ) from error
        return found

    def keep(self, folder: Path, kind: str) -> None:
        """Put the invitation and its authority into a party's folder of keys; one of another server is refused."""
        check_kind(folder, kind)
        with held(folder):
            if exists(folder / CA) and read_bytes(folder / CA) != self.authority.encode():
                raise ConfigError(
                    f"{folder / CA} is the authority of another federation; name another --keys for this invitation"
                )
            write_atomically(folder / CA, self.authority.encode())
            write_atomically(folder / FILE, self.document)

    def is_kept(self, folder: Path) -> bool:
        """Say whether this very invitation was accepted before, and is in a folder of keys."""
        return exists(folder / FILE) and read_bytes(folder / FILE) == self.document


def invite(keys: Path, server: str, terms: Terms) -> Invitation:
    """Return the invitation to a server, and write it beside its keys."""
    split_address(server, "--address")
    read_authority(keys / CA)
    found = Invitation(server, read_bytes(keys / CA).decode(), Terms("", terms.recipe, terms.backbone, terms.rounds))
    write_atomically(keys / FILE, found.document)
    return found


def stale(keys: Path, digest: str) -> str | None:
    """Return a warning if the invitation beside a server's keys has other terms than the server."""
    if not exists(keys / FILE):
        return None
    try:
        invited = Invitation.load(keys / FILE).terms.digest
    except FcilError as error:
        return str(error)
    if invited == digest:
        return None
    return (
        f"{keys / FILE} has the terms {invited}, and this server {digest}, so parties that it invited refuse them; "
        "`fcil federation init` writes a new one"
    )


def check_requested(keys: Path, terms: Sequence[tuple[str, str]]) -> None:
    """Refuse parties, by name and accepted terms, that have accepted other terms than the server's invitation has."""
    if not exists(keys / FILE):
        raise ConfigError(f"{keys / FILE} is missing; `fcil federation init` writes it")
    wanted = Invitation.load(keys / FILE).terms.digest
    for name, accepted in terms:
        if accepted != wanted:
            raise ConfigError(
                f"{name} has accepted the terms {accepted}, and the invitation has {wanted}; send it the present "
                f"{keys / FILE}"
            )
