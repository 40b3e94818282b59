"""`fcil list`: the methods, networks, presets, settings and other parts to choose from."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from fcil.cli.options import console
from fcil.core.errors import ConfigError

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

    _print_names("aggregator", {name: _first_line(kind.__doc__) for name, kind in AGGREGATORS.items()})


@app.command("datasets")
def list_datasets() -> None:
    """List the data sets and formats that `data.source` can name."""
    from fcil.data.datasets import ORIGINS, SOURCES

    _print_names("data set", {name: _first_line(read.__doc__) for name, read in (SOURCES | ORIGINS).items()})


@app.command("loggers")
def list_loggers() -> None:
    """List the loggers that `--log` can name."""
    from fcil.reporting.loggers import LOGGERS

    needs = {name: f"needs the package {kind.package}" if kind.package else "" for name, kind in LOGGERS.items()}
    _print_names("logger", needs)


@app.command("engines")
def list_engines() -> None:
    """List the engines, which say where clients run."""
    from fcil.federation.engines import ENGINES

    _print_names("engine", ENGINES)


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def _print_names(kind: str, summaries: dict[str, str]) -> None:
    table = Table(kind, "what it is", box=None)
    for row in summaries.items():
        table.add_row(*row)
    console.print(table)
