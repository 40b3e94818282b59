"""`fcil federation sites`: the parties that a server admits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fcil.cli.extra import flower_extra
from fcil.cli.options import PLACE, AsJson
from fcil.core.errors import ConfigError

if TYPE_CHECKING:
    from fcil.deployment.server.roster import Roster

app = typer.Typer(no_args_is_help=True, help="Register sites and the proxy with a server, and list or remove them.")
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
        str | None, typer.Option(metavar="NAME", help="Another name than the one that stands in the file.")
    ] = None,
    proxy: Annotated[bool, typer.Option("--proxy", help="It is the proxy, of which there can be one.")] = False,
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
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from `fcil federation sites list`.")],
    keys: Keys = DEFAULT,
) -> None:
    """Remove a site or the proxy from all further rounds.

    Its key cannot be registered again.
    """
    entry = _roster(keys).remove(name)
    typer.echo(f"removed {entry.name}, number {entry.number}; to come back it needs a new key and gets a new number")


@app.command("list")
def list_sites(
    keys: Keys = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the registered sites and the proxy; --json includes removed ones."""
    roster = _roster(keys)
    if as_json:
        entries = [{**entry.model_dump(), "fingerprint": entry.fingerprint} for entry in roster.entries]
        typer.echo(json.dumps(entries, indent=2))
        return
    if not roster.present:
        typer.echo(
            f"nobody is registered in {keys}; add a site with `fcil federation sites add FILE.pub --keys {keys}`"
        )
    for entry in roster.present:
        typer.echo(f"{entry.number:>4}  {entry.name:<24}  {entry.role:<5}  {entry.fingerprint}")
