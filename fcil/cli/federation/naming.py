"""`fcil federation name`: a site with the consortium's secret gives the classes of a model their names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fcil.cli.extra import flower_extra
from fcil.cli.options import PLACE, new_file
from fcil.core.errors import ConfigError
from fcil.core.files import write_atomically


def name(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", click_type=PLACE, help="A model.safetensors that a server has written.")
    ],
    keys: Annotated[
        Path, typer.Option("--keys", metavar="DIR", click_type=PLACE, help="Keys of a site: the consortium's secret.")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", click_type=PLACE, help="Where the model with names is written.")
    ],
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FOLDER", click_type=PLACE, help="Names to try: the folders in FOLDER."),
    ] = None,
    names: Annotated[
        Path | None, typer.Option("--names", metavar="FILE", click_type=PLACE, help="Names to try: one per line.")
    ] = None,
) -> None:
    """Write a model with the names of its classes.

    A server knows classes by salted hashes only. A site can compute the hash of any name with the consortium's secret,
    so it also finds the names of other sites' classes if they are among the names to try.
    """
    from fcil.data.datasets.class_folders import class_folders, read_lines
    from fcil.experiment.model_file import renamed

    if data is None and names is None:
        raise ConfigError("--data FOLDER or --names FILE is needed: names that the classes may have")
    new_file("--out", out)
    with flower_extra():
        from fcil.deployment.keys.files import SECRET
        from fcil.deployment.keys.make import read_secret
    secret = read_secret(keys / SECRET)
    candidates = [folder.name for folder in class_folders(data)] if data is not None else []
    candidates += read_lines(names) if names is not None else []
    known = {secret.class_id(candidate): candidate.strip() for candidate in candidates}
    unknown: list[str] = []

    def rename(identity: str) -> str:
        if identity not in known and identity not in known.values():
            unknown.append(identity)
        return known.get(identity, identity)

    content = renamed(model, rename)
    write_atomically(out, content)
    rest = f"; without a name: {', '.join(unknown)}" if unknown else ""
    typer.echo(f"{out} has the names of its classes{rest}")
