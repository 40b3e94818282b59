"""`fcil leaderboard`: every method on every experiment of which results are kept, and runs of one's own beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from fcil.cli.options import PLACE, console
from fcil.core.console import warn
from fcil.core.errors import ConfigError
from fcil.reporting.leaderboard.format import (
    TERMINAL,
    ahead_of,
    average_of,
    board_document,
    board_markdown,
    headings,
    lines_of,
    name_of,
    notes_on,
    sends_of,
)
from fcil.reporting.leaderboard.load import standings
from fcil.reporting.leaderboard.rank import Cell, Leaderboard


def leaderboard(
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", click_type=PLACE, help="Folder of kept results, instead of those that ship with fcil."
        ),
    ] = None,
    add: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            click_type=PLACE,
            help="A run, or a folder of runs or of kept results, to put beside them; may be repeated.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as one JSON document, for scripts.")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print it as Markdown, with links to the runs.")
    ] = False,
) -> None:
    """Print the table of all methods on all reduced experiments, and put runs of your own method beside them."""
    if as_json and as_markdown:
        raise ConfigError("--json and --markdown: the table is printed in one of them; leave one out")
    board = standings(results, add or [], warn)
    if as_json:
        typer.echo(json.dumps(board_document(board), allow_nan=False))
    elif as_markdown:
        typer.echo(board_markdown(board))
    else:
        _show(board)


def _show(board: Leaderboard) -> None:
    table = Table(*(Column(name, overflow="fold") for name in headings(board)), box=None, padding=(0, 2, 1, 0))
    for row in board.rows:
        cells = (_shown(row.cells[name]) if name in row.cells else Text() for name in board.experiments)
        table.add_row(Text(name_of(row)), *cells, ahead_of(row), Text(sends_of(row)))
    console.print(table)
    for sentence in notes_on(board, TERMINAL):
        console.print(sentence, soft_wrap=True)


def _shown(cell: Cell) -> Text:
    average = Text(average_of(cell), "bold" if cell.leads else "")
    return Text("\n").join([average, *map(Text, lines_of(cell))])
