"""`fcil federation classes`: consent at a site, and classes that the server's operators withdraw or merge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fcil.cli.extra import flower_extra
from fcil.cli.options import PLACE

app = typer.Typer(no_args_is_help=True, help="Approve classes at a site; withdraw or merge them at the server.")
Run = Annotated[Path, typer.Option("--run", metavar="DIR", click_type=PLACE, help="Directory of the server's run.")]
Keys = Annotated[Path, typer.Option("--keys", metavar="DIR", click_type=PLACE, help="Folder of the server's keys.")]
ClassId = Annotated[str, typer.Argument(metavar="ID", help="Id of the class, or its first characters.")]
RUN, KEYS = Path("run"), Path("keys/server")


@app.command()
def approve(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the class: that of its folder.")],
    classes: Annotated[
        Path, typer.Option("--classes", metavar="FILE", click_type=PLACE, help="The file of `join --classes`.")
    ],
) -> None:
    """Let a folder of this name become a class.

    A running site follows in its next round.
    """
    with flower_extra():
        from fcil.deployment.client.class_consent import approve as add

    new = add(classes, name)
    typer.echo(f"{name.strip()} {'is' if new else 'was'} approved in {classes}")


@app.command("id")
def class_id(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a class.")],
    keys: Annotated[
        Path, typer.Option("--keys", metavar="DIR", click_type=PLACE, help="Keys of a site: the consortium's secret.")
    ],
) -> None:
    """Print the id by which the server knows a class."""
    with flower_extra():
        from fcil.deployment.keys.files import SECRET
        from fcil.deployment.keys.make import read_secret

    typer.echo(read_secret(keys / SECRET).class_id(name))


@app.command()
def withdraw(class_id: ClassId, run: Run = RUN, keys: Keys = KEYS) -> None:
    """Take a class out of training, evaluation and models; no way leads back.

    A running server and its sites follow in the next round.
    """
    gone, _ = _retired(run, keys, class_id, None)
    typer.echo(f"{gone} is withdrawn")


@app.command()
def merge(
    class_id: ClassId,
    into: Annotated[str, typer.Argument(metavar="INTO", help="Id of the class that it becomes part of.")],
    run: Run = RUN,
    keys: Keys = KEYS,
) -> None:
    """Merge a class into another one, as for two spellings of one name.

    A running server and its sites follow in the next round.
    """
    gone, there = _retired(run, keys, class_id, into)
    typer.echo(f"{gone} is part of {there} from now on")


def _retired(run: Path, keys: Path, given: str, into: str | None) -> tuple[str, str]:
    with flower_extra():
        from fcil.deployment.retired_classes import retire
        from fcil.deployment.server.run import catalogue_of

    return retire(keys, catalogue_of(run), given, into)
