"""`fcil federation init`, and how an invited site or proxy makes its keys and waits for what it lacks."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fcil.cli.extra import flower_extra
from fcil.cli.options import PLACE, Configuration, Method, Settings
from fcil.core.errors import ConfigError, FcilError, one_line
from fcil.core.files import exists

if TYPE_CHECKING:
    from fcil.deployment.invitation import Invitation
    from fcil.deployment.keys.handover import Handover
    from fcil.deployment.party_limits import PartyLimits

LOOK = 1.0  # seconds between two looks for a file that others send
Yes = Annotated[
    bool, typer.Option("--yes", help="The fingerprints were compared with their owners by voice; ask nothing.")
]


def init(
    config: Configuration,
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address by which sites and the proxy call the server.")
    ],
    keys: Annotated[
        Path, typer.Option("--keys", metavar="DIR", click_type=PLACE, help="Folder of the server's keys; made if new.")
    ] = Path("keys/server"),
    method: Method = None,
    settings: Settings = None,
) -> None:
    """Prepare a server: make its keys and write the invitation that is sent to all sites and the proxy.

    The invitation has the server's address, the certificate of its authority and the terms. Run it again after a change
    of the configuration or the address.
    """
    from fcil.core.net import split_address
    from fcil.experiment.config import load_config

    host, port = split_address(address, "--address")
    parsed = load_config(config, [*(settings or []), *([f"method.name={method}"] if method is not None else [])])
    with flower_extra():
        from fcil.deployment.invitation import FILE, invite
        from fcil.deployment.keys.files import CA
        from fcil.deployment.keys.make import ServerKeys, make_server_keys
        from fcil.deployment.server.run import terms_of
    terms = terms_of(parsed)
    if not exists(keys / CA):
        make_server_keys(keys, [host])
        _say(f"{keys}: new keys of a server for {host}; ca.key and server.key never leave this machine")
    names = ServerKeys.load(keys).addresses
    if host.lower() not in names and f"*.{host.lower().partition('.')[2]}" not in names:
        raise ConfigError(
            f"--address {address}: {keys}/server.crt names {', '.join(names)} only; add {host} with "
            f"`fcil federation keys server --renew --out {keys} --address {','.join([*names, host])}`"
        )
    invitation = invite(keys, address, terms)
    _say(f"{keys / FILE}: send it to every site and to the proxy; its fingerprint, to compare by voice, is")
    _say(f"    {invitation.fingerprint}")
    _say(f"start the server with `fcil federation serve {config} --address 0.0.0.0:{port} --keys {keys} --out run`")


@dataclass(frozen=True)
class Way:
    """How a party reaches its server: address, folder of keys, accepted terms, and whether it waits for approval."""

    server: str
    keys: Path
    accept: str | None
    patient: bool


@dataclass(frozen=True)
class PartyOptions:
    """The options of a party on how it reaches its server, as they were given."""

    invitation: Path | None
    server: str | None
    keys: Path | None
    name: str | None
    accept: str | None
    insecure: bool


def way_of(options: PartyOptions, kind: str, state: Path, limits: PartyLimits) -> Way:
    """Return the way to the server; an invited party gets its keys first, and waits for the secret."""
    if options.invitation is None:
        if options.server is None or options.keys is None:
            raise ConfigError("INVITATION is missing: the file of `fcil federation init`, or --server with --keys")
        return Way(options.server, options.keys, options.accept, False)
    if options.server is not None or options.insecure:
        raise ConfigError("--server and --insecure: leave them out, an invitation has the server's address")
    from fcil.deployment.invitation import Invitation

    found = Invitation.load(options.invitation)
    folder = _folder(options, kind)
    if not found.is_kept(folder):
        _agree(found, limits, options.accept)
        _make_keys(folder, kind, options.name)
        found.keep(folder, kind)
    _await_secret(found, folder, kind, state, limits)
    return Way(found.server, folder, found.terms.digest, True)


def _folder(options: PartyOptions, kind: str) -> Path:
    from fcil.deployment.keys.files import PROXY, check_name

    if options.keys is not None:
        return options.keys
    if kind == "proxy":
        return Path("keys") / PROXY
    if options.name is None:
        raise ConfigError("--name is missing: the site's name, with letters, digits, -, _ and .")
    return Path("keys") / check_name(options.name)


def _make_keys(folder: Path, kind: str, name: str | None) -> None:
    """Make a party's keys unless it has them."""
    from fcil.deployment.keys.files import SITE_PUBLIC, kind_of
    from fcil.deployment.keys.handover import own_name
    from fcil.deployment.keys.make import add_box_key, make_proxy_keys, make_site_keys

    there = kind_of(folder)
    if there is not None and there != kind:
        raise ConfigError(f"--keys {folder}: it holds the keys of a {there}; name another folder")
    if kind == "proxy":
        if there is None:
            make_proxy_keys(folder)
        return
    if there is None:
        if name is None:
            raise ConfigError(f"--name is missing: the name of the site, whose keys {folder} shall hold")
        make_site_keys(folder, name)
    elif name is not None and own_name(folder) != name:
        raise ConfigError(f"--name {name}: {folder / SITE_PUBLIC} is that of {own_name(folder)}; leave out --name")
    add_box_key(folder)


def _agree(invitation: Invitation, limits: PartyLimits, accept: str | None) -> None:
    """Show an invitation, and go on once the owner accepts it."""
    for line in invitation.words(limits):
        _say(line)
    if accept is not None:
        if accept != invitation.fingerprint:
            raise ConfigError(f"--accept {accept}: the fingerprint of the invitation is {invitation.fingerprint}")
        return
    confirm(
        "Have the server's people read you the same fingerprint, and do you join under these terms?",
        f"nobody has accepted this invitation; the same command with --accept {invitation.fingerprint} does",
    )


def _await_secret(invitation: Invitation, folder: Path, kind: str, state: Path, limits: PartyLimits) -> None:
    """Print the request of a party that has not joined yet, and wait until its keys are complete."""
    from fcil.deployment.keys.files import PROXY_PUBLIC, SECRET
    from fcil.deployment.keys.request import proxy_request, site_request
    from fcil.deployment.party import TERMS
    from fcil.deployment.party_limits import agreeable

    if not exists(state / TERMS):
        make = proxy_request if kind == "proxy" else site_request
        request = make(folder, invitation.terms.digest)
        _say("send this request to the server's operators and to the site that has the consortium's secret:")
        typer.echo(request.line)
        _say(f"its fingerprint, to compare by voice, is {request.fingerprint}")
    proxied = agreeable(invitation.terms, limits).roles().proxy is not None
    needed = [folder / name for name in (SECRET, *([PROXY_PUBLIC] if proxied and kind == "site" else []))]
    if all(map(exists, needed)):
        return
    typed = sys.stdin.isatty() and sys.stdout.isatty()
    lacking = " and ".join(path.name for path in needed if not exists(path))
    first = f"; the first site makes it with `fcil federation keys secret --out {folder} --for REQUESTS`"
    _say(f"waits for {lacking}, which a site seals for this party{'' if kind == 'proxy' else first}")
    if typed:
        _say("paste the line that a site has sealed for this party:")
    while not all(map(exists, needed)):
        line = _typed() if typed else ""
        if line:
            _take(folder, line)
        else:
            time.sleep(LOOK)


def _typed() -> str:
    """Return a line that somebody has typed or pasted, or an empty one."""
    ready, _, _ = select.select([sys.stdin], [], [], 0.0)
    return sys.stdin.readline().strip() if ready else ""


def _take(folder: Path, line: str) -> None:
    """Keep the secret in a pasted line, or say what is wrong with it."""
    from fcil.deployment.keys.handover import keep, opened

    try:
        found = opened(folder, line, "the line")
        confirm_secret(found, False)
        keep(folder, found)
    except FcilError as error:
        _say(f"{error}")


def confirm_secret(found: Handover, yes: bool) -> None:
    """Let the owner compare a received secret with its sender: anybody can seal, also the server's people."""
    _say(f"the check of the secret is {found.secret.check}")
    if found.proxy is not None:
        _say(f"the fingerprint of proxy.pub is {found.proxy.fingerprint}")
    if not yes:
        confirm(
            "Has the site that sealed it read you the same?",
            "nobody has compared the secret with its sender; the same command with --yes says so",
        )


def confirm_requests(named: Sequence[tuple[str, str]], yes: bool) -> None:
    """Let a person compare the fingerprints of parties with their people."""
    for name, fingerprint in named:
        typer.echo(f"{name:<24}  {fingerprint}", err=True)
    if not yes:
        confirm(
            "Have their people read you the same?",
            "nobody has compared the fingerprints with the parties' people; the same command with --yes says so",
        )


def confirm(question: str, absent: str) -> None:
    """Go on once a person says yes; without a terminal a sentence says how to."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(absent)
    if not typer.confirm(question, err=True):
        raise ConfigError("the answer was no; nothing was changed")


def _say(line: str) -> None:
    typer.echo(one_line(line))
