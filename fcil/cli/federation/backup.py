"""`fcil federation backup`: a consistent copy of a server's run and keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fcil.cli.extra import flower_extra
from fcil.cli.options import PLACE


def backup(
    to: Annotated[Path, typer.Argument(metavar="DIR", click_type=PLACE, help="New folder for the copy.")],
    run: Annotated[
        Path, typer.Option("--run", metavar="DIR", click_type=PLACE, help="Directory of the server's run.")
    ] = Path("run"),
    keys: Annotated[
        Path, typer.Option("--keys", metavar="DIR", click_type=PLACE, help="Folder of the server's keys.")
    ] = Path("keys/server"),
) -> None:
    """Copy a server's run and keys, also while it runs; the copy is read back.

    To restore, put both back and start the server with --restored. The copy holds private keys.
    """
    with flower_extra():
        from fcil.deployment.server.backup import back_up

    rounds = back_up(run, keys, to)
    typer.echo(f"{to} has the run after round {rounds}, and the keys; `fcil federation serve --restored` continues it")
