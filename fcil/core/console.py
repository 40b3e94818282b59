"""Text for people: a plain console, and warnings of one line each on the error stream."""

from __future__ import annotations

import click
from rich.console import Console

from fcil.core.errors import one_line


def plain_console(stderr: bool = False) -> Console:
    """Return where lines for people go, shown as they are: a `[name]` in a path or a class is no markup of rich's."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def warn(text: str) -> None:
    """Show a warning as one line."""
    click.echo(f"warning: {one_line(text)}", err=True)
