"""A site or the proxy in a federation: connected, connected again after the server was away, until it is dismissed."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fcil.core.errors import ConfigError, FederationError, reason
from fcil.core.net import split_address
from fcil.deployment.flower.supernode_client import SuperNodeClient
from fcil.deployment.party import Party, Say

FOLDER = "flower"  # within the party's own: Flower's log and home
KNOCK = 1.0  # seconds between two looks for a server
PAUSE = 2.0  # seconds before the next attempt
STARTING = 10.0  # seconds in which a server that has just been started may not know us yet
PATIENCE = 120.0  # the same for one that has let us in before; after a kill it takes us for connected for a while
UNKNOWN = "Failed to activate SuperNode"  # Flower's words for a node that is not registered
SLOW = 15.0  # seconds after which somebody who waits is told so


@dataclass(frozen=True)
class Connection:
    """Where the server is, and what it takes to be let in; without keys, plain HTTP on this machine alone."""

    server: str  # HOST:PORT
    key: Path | None
    ca: Path | None


def stay_connected(party: Party, address: Connection, say: Say) -> None:
    """Answer the server's requests until it takes leave; raise a sentence if it does not let us in."""
    admitted, refused_since = party.knows_server, None
    while not party.dismissed:
        _await(address, say)
        with SuperNodeClient(party.folder / FOLDER, address.server, address.key, address.ca) as node:
            ended = threading.Event()
            threading.Thread(target=_tell, args=(node, address.server, ended, say), daemon=True).start()
            try:
                _serve(node, party)
            finally:
                ended.set()
            connected, complaint = node.connected, node.complaint()
        if party.dismissed:
            return
        if connected:
            admitted, refused_since = True, None
            say(f"the connection to {address.server} is lost; trying again")
        else:
            refused_since = refused_since or time.monotonic()
            if time.monotonic() - refused_since > (PATIENCE if admitted else STARTING):
                raise _refusal(address, complaint)
        time.sleep(PAUSE)


def _serve(node: SuperNodeClient, party: Party) -> None:
    """Answer requests on a node until the party is dismissed or the node ends."""
    leaving = threading.Event()

    def handle(request: bytes, parcels: Mapping[str, bytes]) -> bytes:
        answer = party.handle(request, parcels)
        if party.dismissed:
            leaving.set()
        return answer

    node.serve(handle, leaving)
    if party.dismissed:
        node.flush()


def _tell(node: SuperNodeClient, server: str, ended: threading.Event, say: Say) -> None:
    """Say when the server has let us in, and that it has not if that takes long."""
    began, told = time.monotonic(), False
    while not ended.wait(0.2):
        if node.connected:
            say(f"connected to {server}")
            return
        if not told and time.monotonic() - began > SLOW:
            say(f"no answer from {server} yet; still trying")
            told = True


def _await(address: Connection, say: Say) -> None:
    """Wait until a server answers at the address, and refuse one that does not show the right certificate."""
    began, told = time.monotonic(), False
    while True:
        try:
            _knock(address)
            return
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
            time.sleep(KNOCK)


def _knock(address: Connection) -> None:
    """Connect once, with the handshake that a SuperNode would make, which itself says little of what is wrong."""
    host, port = split_address(address.server, "--server")
    with socket.create_connection((host, port), timeout=SLOW) as connection:
        if address.ca is not None:
            context = ssl.create_default_context(cafile=str(address.ca))
            with context.wrap_socket(connection, server_hostname=host):
                pass


def _distrust(address: Connection, error: ssl.SSLCertVerificationError) -> ConfigError:
    """Return the sentence for a certificate that is not the right one."""
    if "ismatch" in error.verify_message or "not valid for" in error.verify_message:
        return ConfigError(
            f"--server {address.server}: the server's certificate does not name this address; use one that it names, "
            "or let the administrator add it with `fcil federation keys server --renew`"
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


def _refusal(address: Connection, complaint: str) -> FederationError | ConfigError:
    """Return the sentence for what a SuperNode said when it ended without having been let in."""
    if UNKNOWN in complaint:
        return ConfigError(
            f"--server {address.server} does not know this party; send its .pub file to the administrator, who adds it "
            "with `fcil federation sites add`"
        )
    return FederationError(f"{address.server} does not let us in: {complaint}")
