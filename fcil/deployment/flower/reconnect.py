"""The connection of a site or the proxy: it reconnects after a loss until the server ends the federation."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fcil.core.errors import ConfigError, FcilError, FederationError, disk_problem, reason
from fcil.core.net import check_loopback
from fcil.core.pulse import PULSE
from fcil.deployment.epoch import when
from fcil.deployment.flower.auth_middleware import REFUSED, STRANGER
from fcil.deployment.flower.clock import Greeting, knock, misfit, notable
from fcil.deployment.flower.node import HEARTBEAT, FleetNode
from fcil.deployment.keys.expiry import expiry_warning, file_warnings
from fcil.deployment.keys.files import folder_warning
from fcil.deployment.party import Party, Say

FOLDER = "flower"  # within the party's own: Flower's log and home
KNOCK = 1.0  # seconds between two attempts to reach a server
PAUSE = 2.0  # seconds before the next attempt
STARTING = 10.0  # seconds for which a server that was just started may not know us yet
PATIENCE = 120.0  # the same for a server that admitted us before; after a kill it still counts us as connected
APPROVAL = 15.0  # seconds before the next attempt of a party that waits for its approval
GONE = 2 * HEARTBEAT + 4.0  # seconds after which a server has noticed that this party was killed
OUTAGE = 5.0  # seconds of silence after which the owner is told; Flower notices it within 15
SLOW = 15.0  # seconds after which a waiting user is told so


@dataclass(frozen=True)
class ServerAddress:
    """The server's address, and the key and CA certificate to connect with; without them, plain HTTP on loopback."""

    server: str  # HOST:PORT
    key: Path | None
    ca: Path | None
    patient: bool = False  # the server's operators have yet to approve this party's request

    def __post_init__(self) -> None:
        if self.ca is None:
            check_loopback(self.server, "--server")


@dataclass(frozen=True)
class Attempt:
    """The end of an attempt to stay connected: whether the server admitted us, and otherwise its or our complaint."""

    admitted: bool
    complaint: str = ""
    clock: bool = False  # the clocks differ too much, which waiting does not mend

    @property
    def counted(self) -> bool:
        """True if the server still counts this party's former process, which was killed, as connected."""
        return REFUSED in self.complaint and STRANGER not in self.complaint


def stay_connected(party: Party, address: ServerAddress, say: Say) -> None:
    """Answer the server's requests until it ends the federation; raise an error if it does not admit us."""
    _warn_of_folders(party, address, say)
    admitted, refused_since, full = party.knows_server, None, False
    while not party.dismissed:
        PULSE.beat()
        try:
            attempt, full = _attempt(party, address, say), False
        except (FcilError, OSError) as error:
            problem = disk_problem(error)
            if problem is None:
                raise
            if not full:
                say(f"warning: this party's {problem} ({error}); it connects once that has changed")
            full = True
            time.sleep(PAUSE)
            continue
        if party.dismissed:
            return
        if attempt.admitted:
            admitted, refused_since = True, None
            lost = f"the connection to {address.server} is lost; trying again"
            say("keys and certificates are read again" if party.renewing() else f"{lost} ({when(time.time())})")
        else:
            if attempt.clock and admitted and refused_since is None:
                say(f"warning: {attempt.complaint}")
            if address.patient and not admitted and REFUSED in attempt.complaint:
                if refused_since is None:
                    say("waits until the server's operators have approved this party's request")
                refused_since = time.monotonic()
                time.sleep(APPROVAL)
                continue
            refused_since = refused_since or time.monotonic()
            patience = PATIENCE if admitted else 0.0 if attempt.clock else STARTING
            if time.monotonic() - refused_since >= patience:
                raise _refusal(address, attempt)
        if attempt.counted:  # it gives up the request of that process once this one stays away long enough
            say("the server still counts this party's former process as connected; waits until it notices")
        time.sleep(GONE if attempt.counted else PAUSE)


def _attempt(party: Party, address: ServerAddress, say: Say) -> Attempt:
    """Connect once, and answer requests until the connection or the federation ends."""
    greeting = _await(address, say)
    wrong, warning = misfit(greeting.ahead), notable(greeting.ahead)
    if wrong is not None:
        return Attempt(False, wrong, clock=True)
    if warning is not None:
        say(f"warning: {warning}")
    for ending in _expiring(address, greeting):
        say(f"warning: {ending}")
    with FleetNode(party.folder / FOLDER, address.server, address.key, address.ca, party.say) as node:
        ended = threading.Event()
        threading.Thread(target=_tell, args=(node, address.server, ended, party), daemon=True).start()
        try:
            _serve(node, party)
        finally:
            ended.set()
            party.own.connected(address.server, False)
        return Attempt(node.connected, " ".join(filter(None, (node.complaint, warning))))


def _warn_of_folders(party: Party, address: ServerAddress, say: Say) -> None:
    """Tell the owner of folders that others on this machine can open."""
    for folder in (party.folder, address.key.parent if address.key else None):
        warning = folder_warning(folder) if folder is not None else None
        if warning is not None:
            say(f"warning: {warning}")


def _serve(node: FleetNode, party: Party) -> None:
    """Answer requests on a node until the federation or the node ends."""

    def handle(request: bytes, parcels: Mapping[str, bytes]) -> bytes:
        answer = party.handle(request, parcels)
        if party.dismissed:
            party.leaving.set()
        return answer

    node.serve(handle, party.leaving)


def _tell(node: FleetNode, server: str, ended: threading.Event, party: Party) -> None:
    """Report that the server admitted us, or that this takes long, and then every outage."""
    began, told = time.monotonic(), False
    while not ended.wait(0.2):
        if node.connected:
            party.say(f"connected to {server}")
            party.own.connected(server, True)
            _tell_outages(node, server, ended, party)
            return
        if not told and time.monotonic() - began > SLOW:
            party.say(f"no answer from {server} yet; still trying")
            told = True


def _tell_outages(node: FleetNode, server: str, ended: threading.Event, party: Party) -> None:
    """Say when the server has become silent, and when it answers again."""
    told: float | None = None
    while not ended.wait(1.0):
        since = node.silent_since
        if told is None and since is not None and time.time() - since >= OUTAGE:
            told = since
            party.own.connected(server, False)
            party.say(f"warning: {server} has not answered since {when(since)}; this party goes on once it does")
        elif told is not None and since is None:
            party.own.connected(server, True)
            party.say(f"{server} answers again, after {time.time() - told:.0f} s ({when(time.time())})")
            told = None


def _expiring(address: ServerAddress, greeting: Greeting) -> list[str]:
    """Return warnings about certificates that end soon: the server's own, and its authority's."""
    mine = {address.ca: "the server's administrator makes new keys, and sends you the new one"} if address.ca else {}
    server = greeting.until and expiry_warning(
        f"the certificate of {address.server}", greeting.until, "its administrator renews it"
    )
    return [*([server] if server else []), *file_warnings(mine)]


def _await(address: ServerAddress, say: Say) -> Greeting:
    """Wait until a server answers at the address, and refuse one with another certificate."""
    began, told = time.monotonic(), False
    while True:
        try:
            return knock(address.server, _trust(address.ca), SLOW)
        except ssl.SSLCertVerificationError as error:
            raise _distrust(address, error) from error
        except ssl.SSLError as error:
            raise ConfigError(
                f"--server {address.server}: what answers there does not speak TLS ({reason(error)})"
            ) from error
        except OSError:  # nobody is there yet
            if not told and time.monotonic() - began > SLOW:
                say(f"no answer from {address.server} yet; still trying")
                told = True
            PULSE.beat()
            time.sleep(KNOCK)


def _trust(ca: Path | None) -> ssl.SSLContext | None:
    """Return the TLS settings of a node; its own errors say little."""
    return None if ca is None else ssl.create_default_context(cafile=str(ca))


def _distrust(address: ServerAddress, error: ssl.SSLCertVerificationError) -> ConfigError:
    """Return the error for a certificate that cannot be verified."""
    if "ismatch" in error.verify_message or "not valid for" in error.verify_message:
        return ConfigError(
            f"--server {address.server}: the server's certificate does not name this address; use one that it names, "
            "or let the administrator add it with `fcil federation keys server --renew`"
        )
    if "expired" in error.verify_message or "not yet valid" in error.verify_message:
        clocks = misfit(_unverified_difference(address))
        if clocks is not None:
            return ConfigError(f"--server {address.server}: {clocks} ({error.verify_message})")
    if "not yet valid" in error.verify_message:
        return ConfigError(
            f"--server {address.server}: the server's certificate is not valid yet; its administrator made it with a "
            "clock that was ahead, and renews it with `fcil federation keys server --renew`"
        )
    if "expired" in error.verify_message:
        return ConfigError(
            f"--server {address.server}: the server's certificate has expired; its administrator renews it with "
            "`fcil federation keys server --renew`"
        )
    return ConfigError(
        f"--server {address.server}: its certificate was not issued by the CA in {address.ca} "
        f"({error.verify_message}); get ca.crt from the administrator of this server"
    )


def _unverified_difference(address: ServerAddress) -> float | None:
    """Return the difference of the clocks as the unverified server states it; good for a message only."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        return knock(address.server, context, SLOW).ahead
    except OSError:
        return None


def _refusal(address: ServerAddress, attempt: Attempt) -> FederationError | ConfigError:
    """Return the error for a party that was not admitted."""
    if attempt.clock:
        return ConfigError(f"--server {address.server}: {attempt.complaint}")
    if REFUSED in attempt.complaint:
        return ConfigError(
            f"--server {address.server} does not know this party; send its .pub file to the administrator, who adds it "
            "with `fcil federation sites add`"
        )
    return FederationError(f"{address.server} does not admit this party: {attempt.complaint}")
