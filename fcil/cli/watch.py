"""`fcil watch`: runs in a browser while they train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fcil.cli.options import PLACE
from fcil.cli.signals import stoppable
from fcil.core.console import warn
from fcil.core.errors import ConfigError

POLL = 0.2  # seconds after which Ctrl-C is noticed


def watch(
    places: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", click_type=PLACE, help="Runs, or directories that hold runs."),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen at; only this machine can reach 127.0.0.1.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 for any that is free.")] = 8765,
) -> None:
    """Follow runs in a browser while they train.

    Each finished round of a simulation or a server is shown. Runs that start later in one of the directories are listed
    as well. The page makes no request to any other machine.
    """
    from fcil.reporting.live.pages import Pages, render
    from fcil.reporting.live.server import WatchServer

    for place in places:
        if not place.is_dir():
            raise ConfigError(f"{place} is not a directory; name a run's, or one in which runs are or will be")
    with stoppable(), WatchServer(Pages(places, render), host, port) as server:
        if not server.is_local:
            warn(
                f"--host {host}: anyone who reaches this machine can read these runs; nothing is encrypted, and no "
                "password is asked for"
            )
        typer.echo(f"watching {', '.join(map(str, places))} at {server.url}   Ctrl-C ends it")
        try:
            server.serve_forever(POLL)
        except KeyboardInterrupt:
            typer.echo("stopped watching; the runs go on")
