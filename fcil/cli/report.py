"""`fcil report` and `fcil figures`: runs to look at, as a page and as pictures for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fcil.api import read as reading
from fcil.cli.options import PLACE
from fcil.reporting.page import FILE

Places = Annotated[
    list[Path],
    typer.Argument(metavar="DIR...", click_type=PLACE, help="Runs, directories of runs, or results that were kept."),
]


def report(
    places: Places,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", click_type=PLACE, help=f"Where the page is written; by default DIR/{FILE}."),
    ] = None,
) -> None:
    """Write one HTML page on a run, or on several side by side; it opens in any browser and loads nothing."""
    typer.echo(f"report: {reading.report(*places, out=out)}")


def figures(
    places: Places,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", click_type=PLACE, help="Where the pictures are written; by default DIR/figures."),
    ] = None,
) -> None:
    """Draw the paper's figures from the runs that are there, as PNG and SVG for a page of two columns.

    Figure 2 shows prototypes; figures 3 and 4 show accuracy over classes, a panel for each number of tasks.
    """
    for path in reading.figures(*places, out=out):
        typer.echo(f"figure: {path}")
