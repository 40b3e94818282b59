"""How a site or the proxy finds its server, asks its owner, and stays until the federation ends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fcil.cli.federation.invited import PartyOptions, Way, way_of
from fcil.cli.federation.operation import echo, operated_party
from fcil.cli.signals import stoppable
from fcil.core.errors import ConfigError, StoppedError
from fcil.core.event_log import EventLog

if TYPE_CHECKING:
    from fcil.deployment.party import Party, PendingTerms
    from fcil.deployment.party_limits import PartyLimits


def find_way(options: PartyOptions, kind: str, state: Path, limits: PartyLimits) -> Way:
    """Return the way to the server; Ctrl-C ends a party that waits for its keys."""
    if options.server is not None:
        _check_server(options.server, options.insecure)
    try:
        with stoppable():
            return way_of(options, kind, state, limits)
    except KeyboardInterrupt:
        raise StoppedError("stopped; the same command goes on where this one left off") from None


def stay(party: Party, way: Way, key: Path | None, ca: Path | None, events: EventLog, metrics: str | None) -> None:
    """Answer the server's requests until the federation ends; its terms are put to the owner first."""
    from fcil.deployment.flower.process import quieten

    quieten(party.folder / "flower")
    from fcil.deployment.flower.reconnect import ServerAddress, stay_connected

    address = ServerAddress(way.server, key, ca, way.patient)
    try:
        with stoppable(), operated_party(party, metrics, events):
            stay_connected(party, address, party.say)
            while party.pending is not None:
                party.accept(_consent(party.pending, party.accepted))
                stay_connected(party, address, party.say)
    except KeyboardInterrupt:
        raise StoppedError("stopped; the same command continues where this one left off") from None
    finally:
        party.close()
    events.say("the federation has ended")
    events.close()


def _consent(terms: PendingTerms, accepted: str | None) -> str:
    """Show terms and return their digest once the owner accepts them; without a terminal they must be given."""
    if accepted is not None:
        echo(f"--accept {accepted}: the server's terms have another digest, {terms.digest}")
    for line in terms.words:
        echo(line)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError(f"nobody has accepted these terms; add --accept {terms.digest} to the command to accept them")
    if not typer.confirm("Join under these terms?"):
        raise ConfigError("the terms were not accepted; nothing was trained or sent")
    return terms.digest


def _check_server(server: str, insecure: bool) -> None:
    """Refuse a malformed address, and without TLS the address of another machine."""
    from fcil.core.net import check_loopback, split_address

    if insecure:
        check_loopback(server, "--server")
    else:
        split_address(server, "--server")


def check_device(device: str) -> None:
    """Refuse a device that this machine does not have."""
    from fcil.experiment.run import device_is_there

    if device not in ("cpu", "cuda", "mps") or not device_is_there(device):
        raise ConfigError(f"--device {device}: it is not available on this machine; use cpu")
