"""`fcil federation keys`: each party makes its own keys and learns which files to send to whom."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fcil.cli.extra import flower_extra
from fcil.cli.federation.invited import Yes, confirm_requests, confirm_secret
from fcil.cli.options import PLACE, AsJson
from fcil.core.console import warn
from fcil.core.errors import ConfigError, one_line
from fcil.reporting.compare.cells import split_values

app = typer.Typer(no_args_is_help=True, help="Make the keys of a server, a site or the proxy, and look at them.")


@app.command()
def server(
    addresses: Annotated[
        list[str] | None,
        typer.Option(
            "--address",
            metavar="HOST[,HOST...]",
            help="Names and IP addresses by which sites call the server, without a port; may be repeated.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", click_type=PLACE, help="Folder of the server's keys.")] = Path(
        "keys/server"
    ),
    renew: Annotated[
        bool,
        typer.Option(
            "--renew",
            help="Replace server.crt by a new one under the same ca.key: for other addresses, or before it expires.",
        ),
    ] = False,
) -> None:
    """Make the server's certificate and its authority; sites need only ca.crt."""
    with flower_extra():
        from fcil.deployment.keys.make import make_server_keys, renew_server_certificate

    hosts = [host for given in addresses or [] for host in split_values(given)]
    if renew:
        renew_server_certificate(out, hosts)
        _say(f"renewed {out}/server.crt; restart the server to use it; nothing has to be sent to the sites")
        return
    if not hosts:
        raise ConfigError("--address is missing; name the hosts by which sites call the server, with commas between")
    make_server_keys(out, hosts)
    _say(
        f"send {out}/ca.crt to every site and to the proxy; keep ca.key and server.key, and never put a "
        "consortium.secret here"
    )


@app.command()
def site(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The site's name: letters, digits, -, _ and .")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", click_type=PLACE, help="Folder of the site's keys; by default keys/NAME."),
    ] = None,
) -> None:
    """Make a site's keys, on the machine of the site."""
    with flower_extra():
        from fcil.deployment.keys.files import check_name
        from fcil.deployment.keys.make import make_site_keys

    folder = out or Path("keys") / check_name(name)
    make_site_keys(folder, name)
    _say(
        f"send {folder}/site.pub to the server's administrator; keep site.key and site.seed; put ca.crt, "
        "consortium.secret and, where there is a proxy, proxy.pub beside them"
    )


@app.command()
def proxy(
    out: Annotated[Path, typer.Option(metavar="DIR", click_type=PLACE, help="Folder of the proxy's keys.")] = Path(
        "keys/proxy"
    ),
) -> None:
    """Make the proxy's keys, on the machine of the proxy."""
    with flower_extra():
        from fcil.deployment.keys.make import make_proxy_keys

    make_proxy_keys(out)
    _say(
        f"send {out}/node.pub to the server's administrator and {out}/proxy.pub to every site, by a way that the "
        "server does not control; keep all other files; put ca.crt and consortium.secret beside them"
    )


@app.command()
def secret(
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE|DIR",
            click_type=PLACE,
            help="The folder of a site's keys, where it is called consortium.secret, or a name that ends in .secret.",
        ),
    ] = Path("keys/consortium.secret"),
    requests: Annotated[
        list[str] | None,
        typer.Option(
            "--for", metavar="REQUEST", help="Seal it for the parties of these requests, or of files with requests."
        ),
    ] = None,
    sealed: Annotated[
        str | None,
        typer.Option("--from", metavar="LINE|FILE", help="Open it from the line of another site."),
    ] = None,
    yes: Yes = False,
) -> None:
    """Make the consortium's secret, once, at one site; seal it for the others, or open it there.

    It hides class names from the server. What is sealed for a party only that party can open, so it may go by mail.
    The proxy's public keys go along.
    """
    with flower_extra():
        from fcil.deployment.keys.files import SECRET
        from fcil.deployment.keys.handover import keep, opened, own_name, sealed_lines
        from fcil.deployment.keys.make import make_secret, read_secret
        from fcil.deployment.keys.request import read_requests

    if requests and sealed is not None:
        raise ConfigError("--for and --from: a site seals the secret, and another one opens it; give one of them")
    if requests:
        found = read_requests(requests, "--for")
        name = own_name(out)
        confirm_requests([(one.name, one.fingerprint) for one in found if one.name != name], yes)
        lines = sealed_lines(out, found)
        for line in lines.values():
            typer.echo(line)
        check = read_secret(out / SECRET).check
        typer.echo(
            one_line(f"send each line to its party, and read to all of them the check of the secret, {check}"), err=True
        )
        return
    if sealed is not None:
        handed = opened(out, sealed, "--from")
        confirm_secret(handed, yes)
        keep(out, handed)
        _say(f"{out / SECRET} is the secret of the consortium")
        return
    path = out if out.suffix == ".secret" and not out.is_dir() else out / SECRET
    make_secret(path)
    _say(
        f"give every other site and the proxy a copy of {path} as consortium.secret, by a way that nobody else reads; "
        "never to the server; --for seals it for a party, so that it may go by mail"
    )


@app.command()
def show(
    directory: Annotated[Path, typer.Argument(metavar="DIR", click_type=PLACE, help="A folder of keys.")],
    as_json: AsJson = False,
) -> None:
    """Show the files in a folder of keys, and who provides missing ones.

    Private values are never shown.
    """
    with flower_extra():
        from fcil.deployment.keys.status import key_status

    inventory = key_status(directory)
    if as_json:
        typer.echo(json.dumps({"folder": str(directory), **asdict(inventory)}, indent=2))
        return
    _say(f"{directory}: the keys of a {inventory.kind}")
    for name, what in inventory.lines.items():
        _say(f"  {name:<18} {what}")
    for fault in inventory.faults:
        warn(fault)


def _say(text: str) -> None:
    typer.echo(one_line(text))
