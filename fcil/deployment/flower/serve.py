"""A server's run over a SuperLink of its own, reachable at an address."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fcil.core.errors import ConfigError, FcilError, reason
from fcil.core.net import check_loopback, split_address
from fcil.deployment.flower.superlink_client import SuperLinkClient, connect_host
from fcil.deployment.flower.transport import FlowerTransport
from fcil.deployment.keys.expiry import file_warnings
from fcil.deployment.keys.files import CA, SERVER, folder_warning
from fcil.deployment.keys.make import ServerKeys
from fcil.deployment.retired_classes import read_retired
from fcil.deployment.server import audit_log
from fcil.deployment.server.rounds import ServerRunner
from fcil.deployment.server.run import ServedRun

RENEW = "renew it with `fcil federation keys server --renew`, and send the server SIGHUP"
LEAVING = 5.0  # seconds that the SuperLink of a server that was just killed may take to end
FOLDER = "flower"  # within the run's directory: Flower's log and home


def check_address(address: str, keys: Path | None) -> None:
    """Refuse an address that cannot be bound, or one beyond loopback without TLS."""
    host, port = split_address(address, "--address")
    if keys is None:
        check_loopback(address, "--address")
    else:
        _check_named(address, host, port, keys)
    until = time.monotonic() + LEAVING
    while (problem := _unusable(host, port)) is not None:
        if problem.errno != errno.EADDRINUSE or time.monotonic() > until:
            raise ConfigError(f"--address {address}: nothing can listen there ({reason(problem)}); name another")
        time.sleep(0.2)


def _check_named(address: str, host: str, port: int, keys: Path) -> None:
    """Refuse an address that the certificate does not name, since no party could connect to it."""
    own, name = ServerKeys.load(keys), connect_host(host)
    above = f"*.{name.partition('.')[2]}"
    if not {name.lower(), above.lower()} & set(own.addresses):
        listed = ",".join([*own.addresses, name])
        raise ConfigError(
            f"--address {address}: {own.certificate} does not name {name}; use 0.0.0.0:{port} for all addresses of "
            f"this machine, or add it with `fcil federation keys server --renew --out {keys} --address {listed}`"
        )


def _unusable(host: str, port: int) -> OSError | None:
    """Return the error of binding an address, or None."""
    try:
        (family, kind, protocol, _, place), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server itself does
            probe.bind(place)
    except OSError as error:
        return error
    return None


def _reload(superlink: SuperLinkClient, keys: Path, server: ServerRunner) -> None:
    """Let new connections see the certificate that is in the folder of keys now."""
    try:
        ServerKeys.load(keys)
    except FcilError as error:
        server.warn(f"the certificate is not read again: {error}")
        return
    superlink.reload_certificate()
    check_certificates(server)


def check_certificates(server: ServerRunner) -> None:
    """Note how many days a server's certificates have left, and warn of those that end soon."""
    renewals = {CA: "make new keys in a new folder, and send ca.crt to every site", SERVER: RENEW}
    server.live.count_days(server.certificates)
    for warning in file_warnings({path: renewals[name] for name, path in server.certificates.items()}):
        server.warn(warning)


@contextmanager
def hosted(run: ServedRun, address: str, keys: Path | None, warn: Callable[[str], None]) -> Iterator[ServerRunner]:
    """Give a run's server, reachable at an address; without keys only for this machine."""
    host, port = split_address(address, "--address")
    certificates = None
    if keys is not None:
        own = ServerKeys.load(keys)
        for warning in filter(None, (folder_warning(keys), folder_warning(run.folder, public=True))):
            warn(warning)
        run.retired = partial(read_retired, keys)
        if run.reconfigured:
            audit_log.note(keys, "reconfigured", round=run.state.round, settings=run.reconfigured)
        certificates = {"ca": own.ca, "certificate": own.certificate, "key": own.private_key}
    with SuperLinkClient(run.folder / FOLDER, host, port, certificates) as superlink:
        transport = FlowerTransport(superlink, keys, warn)
        try:
            server = run.serve(transport, warn, keys)
            if keys is not None:
                server.reload = partial(_reload, superlink, keys, server)
                server.certificates = {CA: keys / CA, SERVER: keys / SERVER}
            yield server
        finally:
            transport.close()
