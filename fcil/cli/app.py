"""The command line: `fcil` and its commands."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

import fcil
from fcil.cli import federation, listing
from fcil.cli.audit import audit
from fcil.cli.compare import compare
from fcil.cli.data import data
from fcil.cli.demo import demo
from fcil.cli.errors import in_sentences
from fcil.cli.evaluate import evaluate
from fcil.cli.export import export
from fcil.cli.federation import keys, sites
from fcil.cli.forget import forget
from fcil.cli.leaderboard import leaderboard
from fcil.cli.new import new
from fcil.cli.options import console, show_as_written
from fcil.cli.plan import plan
from fcil.cli.predict import predict
from fcil.cli.report import report
from fcil.cli.run import resume, run
from fcil.cli.show import show
from fcil.cli.watch import watch

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated class-incremental learning: run, resume and look at experiments.",
)
PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Experiments": (run, resume, plan, demo, new, data),
    "Results": (show, report, watch, compare, leaderboard, audit),
    "Models": (predict, evaluate, export, forget),
}


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"fcil {fcil.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Hold the options that come before a command."""


for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(listing.app, name="list", rich_help_panel="Experiments")
app.add_typer(federation.app, name="federation", rich_help_panel="Real federations")
app.command("settings", hidden=True)(listing.list_settings)
for part in (app, listing.app, federation.app, keys.app, sites.app):
    show_as_written(part)


def main() -> None:
    """Run the command line."""
    with in_sentences():
        sys.exit(app(prog_name="fcil", standalone_mode=False))  # None, or the code of a typer.Exit
