"""The connection of a site or the proxy: it reconnects after a loss until the server ends the federation."""

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
KNOCK = 1.0  # seconds between two attempts to reach a server
PAUSE = 2.0  # seconds before the next attempt
STARTING = 10.0  # seconds for which a server that was just started may not know us yet
PATIENCE = 120.0  # the same for a server that admitted us before; after a kill it still counts us as connected
UNKNOWN = "Failed to activate SuperNode"  # Flower's words for a node that is not registered
SLOW = 15.0  # seconds after which a waiting user is told so


@dataclass(frozen=True)
class Connection:
    """The server's address, and the key and CA certificate to connect with; without them, plain HTTP on loopback."""

    server: str  # HOST:PORT
    key: Path | None
    ca: Path | None


def stay_connected(party: Party, address: Connection, say: Say) -> None:
    """Answer the server's requests until it ends the federation; raise an error if it does not admit us."""
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
    """Answer requests on a node until the federation or the node ends."""
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
    """Report that the server admitted us, or that this takes long."""
    began, told = time.monotonic(), False
    while not ended.wait(0.2):
        if node.connected:
            say(f"connected to {server}")
            return
        if not told and time.monotonic() - began > SLOW:
            say(f"no answer from {server} yet; still trying")
            told = True


def _await(address: Connection, say: Say) -> None:
    """Wait until a server answers at the address, and refuse one with another certificate."""
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
    """Connect once, with the TLS handshake of a SuperNode, whose own errors say little."""
    host, port = split_address(address.server, "--server")
    with socket.create_connection((host, port), timeout=SLOW) as connection:
        if address.ca is not None:
            context = ssl.create_default_context(cafile=str(address.ca))
            with context.wrap_socket(connection, server_hostname=host):
                pass


def _distrust(address: Connection, error: ssl.SSLCertVerificationError) -> ConfigError:
    """Return the error for a certificate that cannot be verified."""
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
    """Return the error for a SuperNode that ended without being admitted."""
    if UNKNOWN in complaint:
        return ConfigError(
            f"--server {address.server} does not know this party; send its .pub file to the administrator, who adds it "
            "with `fcil federation sites add`"
        )
    return FederationError(f"{address.server} does not admit this party: {complaint}")
