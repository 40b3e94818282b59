"""`fcil list`: the methods, networks, presets, settings and other parts to choose from."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from fcil.cli.options import console
from fcil.core.errors import ConfigError
from fcil.core.registry import MemberRow

app = typer.Typer(no_args_is_help=True, help="List the methods, presets, settings and other parts to choose from.")


@app.command("methods")
def list_methods() -> None:
    """List the methods and their editions."""
    from fcil.methods import methods

    table = Table("method", "what it is", "editions", box=None)
    for method in methods().values():
        table.add_row(method.name, method.summary, ", ".join(method.config.editions))
    console.print(table)


@app.command("networks")
def list_networks() -> None:
    """List the networks, the settings of `[model]` that each has, and whether it has stages (PODNet, GeoDL)."""
    from fcil.models import networks

    table = Table("network", "what it is", "settings", "stages", box=None)
    for network in networks().values():
        table.add_row(network.name, network.summary, ", ".join(sorted(network.reads)), "yes" if network.stages else "")
    console.print(table)


@app.command("presets")
def list_presets() -> None:
    """List the configurations that come with fcil, and how large they are."""
    from fcil.experiment.presets import LISTED, listings

    facts, texts = Table(*LISTED[:-1], box=None), Table(LISTED[0], LISTED[-1], box=None)
    for name, *cells, what in (listing.row() for listing in listings()):
        facts.add_row(name, *cells)
        texts.add_row(name, what)
    for table in (facts, texts):
        table.columns[0].no_wrap = True  # other commands take a name as it is
        table.columns[1].overflow = "fold"
        console.print(table)


@app.command("settings")
def list_settings(
    word: Annotated[
        str, typer.Argument(metavar="[WORD]", help="Only settings whose key or description has this word.")
    ] = "",
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table as Markdown (docs/settings.md).")
    ] = False,
) -> None:
    """List every setting that a TOML file or --set can change, with its default."""
    from fcil.experiment.config import setting_rows
    from fcil.reporting.tables import settings_page

    rows = [row for row in setting_rows() if word.lower() in f"{row[0]} {row[2]}".lower()]
    if not rows:
        raise ConfigError(f"WORD {word}: no setting has it in its key or description; `fcil list settings` has all")
    if markdown:
        typer.echo(settings_page(rows), nl=False)
        return
    table = Table("key", "default", "what it is", box=None)
    for row in rows:
        table.add_row(*row)
    console.print(table)


@app.command("aggregators")
def list_aggregators() -> None:
    """List the aggregators: how the server combines the clients' updates."""
    from fcil.federation.aggregation import AGGREGATORS

    _print_members("aggregator", AGGREGATORS.rows())


@app.command("datasets")
def list_datasets() -> None:
    """List the data sets and formats that `data.source` can name."""
    from fcil.data.datasets import DATASETS

    _print_members("data set", DATASETS.rows())


@app.command("loggers")
def list_loggers() -> None:
    """List the loggers that `--log` can name."""
    from fcil.reporting.loggers import LOGGERS

    _print_members("logger", LOGGERS.rows())


@app.command("engines")
def list_engines() -> None:
    """List the engines, which say where clients run."""
    from fcil.federation.engines import ENGINES

    _print_members("engine", ENGINES.rows())


def _print_members(kind: str, rows: list[MemberRow]) -> None:
    table = Table(kind, "what it is", "package", "settings", box=None)
    for row in rows:
        table.add_row(row.name, row.summary, row.package, ", ".join(row.settings))
    console.print(table)
