"""`fcil report` and `fcil figures`: runs to look at, as a page and as pictures for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fcil.errors import ConfigError
from fcil.files import exists, write_atomically
from fcil.gather import gather
from fcil.options import PLACE
from fcil.results.facts import RunFacts
from fcil.results.page import FILE, page, plotly_code, title_of

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
    code = plotly_code()
    runs = gather(places)
    path = out or _beside(places[0])
    _check_file(path)
    write_report(path, runs, code)
    typer.echo(f"report: {path}")


def write_report(path: Path, runs: list[RunFacts], code: bytes, title: str | None = None) -> None:
    """Write the page on some runs."""
    write_atomically(path, page(runs, title or title_of(runs), code).encode())


def _beside(place: Path) -> Path:
    return place / FILE if place.is_dir() else place.with_suffix(".html")


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise ConfigError(f"--out {path}: it is a directory; name a file, for instance {path / FILE}")
    if not exists(path.parent):
        raise ConfigError(f"--out {path}: the directory {path.parent} does not exist; make it, or name another file")


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
    from fcil.results.paper import paper_figures  # noqa: PLC0415 (matplotlib takes a second to import)

    drawn = paper_figures(gather(places))
    folder = out or (places[0] if places[0].is_dir() else places[0].parent) / "figures"
    if exists(folder) and not folder.is_dir():
        raise ConfigError(f"--out {folder}: it is a file; name a directory")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in drawn.items():
        write_atomically(folder / name, content)
        typer.echo(f"figure: {folder / name}")
