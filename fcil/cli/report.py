"""`fcil report`: an interactive HTML page on runs, or the paper's figures drawn from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fcil.cli.options import PLACE

Places = Annotated[
    list[Path],
    typer.Argument(metavar="DIR...", click_type=PLACE, help="Runs, directories of runs, or kept results."),
]


def report(
    places: Places,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|DIR",
            click_type=PLACE,
            help="File of the page, by default DIR/report.html; with --figures a directory, by default DIR/figures.",
        ),
    ] = None,
    figures: Annotated[
        bool, typer.Option("--figures", help="Draw the paper's figures as PNG and SVG instead of writing the page.")
    ] = False,
) -> None:
    """Write an interactive HTML report on one or more runs.

    The page is one file that opens in any browser and loads nothing from the network. Kept results are never written
    to: for these, name the page with --out.

    With --figures the paper's figures are drawn instead, for a page of two columns: figure 2 shows prototypes, figures
    3 and 4 accuracy over classes with a panel for each number of tasks.
    """
    from fcil.api import read as reading

    if not figures:
        typer.echo(f"report: {reading.report(*places, out=out)}")
        return
    for path in reading.figures(*places, out=out):
        typer.echo(f"figure: {path}")
