"""`fcil leaderboard`: every method on every experiment with kept results, and your own runs beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from fcil.cli.options import PLACE, AsJson, console
from fcil.core.console import warn
from fcil.core.errors import ConfigError

if TYPE_CHECKING:
    from fcil.reporting.leaderboard.rank import Leaderboard


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
    as_json: AsJson = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
) -> None:
    """Rank all methods on the reduced experiments, and your runs."""
    from fcil.reporting.leaderboard.format import board_document, board_markdown
    from fcil.reporting.leaderboard.load import load_leaderboard

    if as_json and as_markdown:
        raise ConfigError("--json and --markdown: the table is printed in one of them; leave one out")
    board = load_leaderboard(results, add or [], warn)
    if as_json:
        typer.echo(json.dumps(board_document(board), allow_nan=False))
    elif as_markdown:
        typer.echo(board_markdown(board))
    else:
        _show(board)


def _show(board: Leaderboard) -> None:
    from fcil.reporting.leaderboard.format import TERMINAL, tables_of

    for part in tables_of(board, TERMINAL):
        console.print(Text(part.title, "bold"))
        table = Table(*(Column(name, overflow="fold") for name in part.columns), box=None, padding=(0, 2, 0, 0))
        for row in part.rows:
            table.add_row(*map(Text, row))
        console.print(table)
        for sentence in part.notes:
            console.print(sentence, soft_wrap=True)
        console.print()
