"""`fcil federation columns`: sums over a site's tables, and the columns that follow from the sums of all sites."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fcil.cli.extra import flower_extra
from fcil.cli.options import PLACE
from fcil.core.errors import ConfigError, one_line
from fcil.core.files import exists


def columns(
    places: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER|SUMS...", click_type=PLACE, help="A site's folder of tables, or all sites' sums."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", click_type=PLACE, help="File to write.")],
    label: Annotated[str, typer.Option(metavar="COLUMN", help="Of a folder: the column of the classes.")] = "label",
    categories: Annotated[
        list[str] | None,
        typer.Option("--category", metavar="COLUMN", help="Of a folder: a column whose numbers name categories."),
    ] = None,
    ignored: Annotated[
        list[str] | None, typer.Option("--ignore", metavar="COLUMN", help="Of a folder: a column that is left out.")
    ] = None,
) -> None:
    """Agree on the columns of a federation with tables.

    Each site writes the sums of its tables and sends the file to the server's people, who make the columns of all.
    """
    with flower_extra():
        from fcil.deployment.agreement import LEAST, sums_of, write_columns, write_sums

    if exists(out):
        raise ConfigError(f"--out {out}: the file exists; name another one, or remove it")
    if len(places) == 1 and places[0].is_dir():
        sums = sums_of(places[0], label, categories or (), ignored or ())
        write_sums(out, sums)
        for column in sums.columns:
            texts = column.categories
            told = f"{column.count:,} numbers" if texts is None else f"texts: {', '.join(texts)}"
            typer.echo(one_line(f"{column.name}: {told}; missing: {column.missing:,}"))
        typer.echo(f"{out} has these sums, and nothing of fewer than {LEAST} rows; send it to the server's people")
        return
    agreed = write_columns(out, places)
    for name in agreed.channel_names:
        typer.echo(one_line(name))
    typer.echo(f"{out} has {len(agreed.names)} columns for --set deployment.columns={out}")
