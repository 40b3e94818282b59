"""`fcil federation sites`: the parties that a server admits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fcil.cli.extra import flower_extra
from fcil.cli.federation.invited import Yes, confirm_requests
from fcil.cli.options import PLACE, AsJson
from fcil.core.errors import ConfigError

if TYPE_CHECKING:
    from fcil.deployment.server.roster import Roster

app = typer.Typer(no_args_is_help=True, help="Register, approve, list, remove and quarantine parties of a server.")
Keys = Annotated[Path, typer.Option("--keys", metavar="DIR", click_type=PLACE, help="Folder of the server's keys.")]
DEFAULT = Path("keys/server")


def _roster(keys: Path) -> Roster:
    """Return the roster in a folder of a server's keys; other folders are refused."""
    with flower_extra():
        from fcil.deployment.keys.files import kind_of
        from fcil.deployment.server.roster import Roster

    roster, kind = Roster.load(keys), kind_of(keys)
    if kind != "server":
        found = f"it holds those of a {kind}" if kind else "it holds none"
        raise ConfigError(
            f"--keys {keys}: should be a folder of a server's keys, {found}; name the one of `fcil federation serve`"
        )
    return roster


@app.command()
def add(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.pub", click_type=PLACE, help="A site's site.pub, or the proxy's node.pub.")
    ],
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name to register, instead of the one in the file.")
    ] = None,
    proxy: Annotated[bool, typer.Option("--proxy", help="Register the proxy; a federation has at most one.")] = False,
    keys: Keys = DEFAULT,
) -> None:
    """Register a site or the proxy by its public key.

    A running server admits it before its next round.
    """
    entry = _roster(keys).add(file, name, "proxy" if proxy else "site")
    typer.echo(
        f"registered {entry.name} as number {entry.number}; ask its people whether their fingerprint is "
        f"{entry.fingerprint} (`fcil federation keys show`)"
    )


@app.command()
def approve(
    requests: Annotated[
        list[str],
        typer.Argument(metavar="REQUEST...", help="Requests that invited parties have printed, or files with them."),
    ],
    yes: Yes = False,
    keys: Keys = DEFAULT,
) -> None:
    """Register invited parties by their requests, once their fingerprints were compared.

    All of them must have accepted the terms of the invitation. A running server admits them before its next round.
    """
    roster = _roster(keys)
    from fcil.deployment.invitation import check_requested
    from fcil.deployment.keys.request import read_requests

    found = read_requests(requests)
    check_requested(keys, [(request.name, request.terms) for request in found])
    confirm_requests([(request.name, request.fingerprint) for request in found], yes)
    for request in found:
        entry, new = roster.approve(request)
        typer.echo(f"{entry.name}, number {entry.number}, {'is registered' if new else 'was registered already'}")


@app.command()
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from `fcil federation sites list`.")],
    keys: Keys = DEFAULT,
) -> None:
    """Remove a site or the proxy from all further rounds.

    Its key cannot be registered again.
    """
    entry = _roster(keys).remove(name)
    typer.echo(f"removed {entry.name}, number {entry.number}; to come back it needs a new key and gets a new number")


@app.command()
def quarantine(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A site's name from `fcil federation sites list`.")],
    end: Annotated[bool, typer.Option("--end", help="Let the site take part again.")] = False,
    keys: Keys = DEFAULT,
) -> None:
    """Leave a site out of rounds without removing it, until --end.

    A running server follows within a second. The site stays connected, is told, and waits.
    """
    entry = _roster(keys).quarantine(name, not end)
    fate = "takes part again" if end else "is in quarantine: it stays registered and takes part in no round"
    typer.echo(f"{entry.name}, number {entry.number}, {fate}")


@app.command("list")
def list_sites(
    keys: Keys = DEFAULT,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run", metavar="DIR", click_type=PLACE, help="Directory of the server's run, for counts of each site."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the registered sites and the proxy; --json includes removed ones.

    With --run, each site's rounds are counted: the rounds that it was drawn for, and those in which its report was
    excluded by the aggregator, refused by the server, or missing.
    """
    roster, counts = _roster(keys), _tallies(run)
    if as_json:
        entries = [
            {**entry.model_dump(), "fingerprint": entry.fingerprint, **counts.get(entry.number, {})}
            for entry in roster.entries
        ]
        typer.echo(json.dumps(entries, indent=2))
        return
    if not roster.present:
        typer.echo(
            f"nobody is registered in {keys}; add a site with `fcil federation sites add FILE.pub --keys {keys}`"
        )
    for entry in roster.present:
        tally = ", ".join(f"{what} {count}" for what, count in counts.get(entry.number, {}).items())
        fate = "in quarantine" if entry.quarantined else ""
        columns = (f"{entry.number:>4}", f"{entry.name:<24}", f"{entry.role:<5}", entry.fingerprint, fate, tally)
        typer.echo("  ".join(filter(None, columns)))


def _tallies(run: Path | None) -> dict[int, Mapping[str, Any]]:
    """Return the tally of each site in a run, by its number."""
    if run is None:
        return {}
    from fcil.experiment.run import read_records
    from fcil.federation.round_record import client_tallies

    return {**client_tallies(read_records(run)[0])}
