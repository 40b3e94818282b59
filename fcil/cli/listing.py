"""`fcil list`: the methods, networks, presets, settings and other parts to choose from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from fcil.cli.options import AsJson, console
from fcil.core.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="List methods, presets, settings and other choices.")


@app.command("methods")
def list_methods(as_json: AsJson = False) -> None:
    """List the methods and their editions, and those whose sums can be masked (`federation.aggregator`)."""
    from fcil.experiment.build import maskable
    from fcil.methods.base import METHODS

    rows = [
        asdict(row) | {"editions": list(METHODS[row.name].config.editions), "masked": maskable(METHODS[row.name])}
        for row in METHODS.rows()
    ]
    _print_members("method", rows, as_json, "editions", "masked", "package")


@app.command("networks")
def list_networks(as_json: AsJson = False) -> None:
    """List the networks, with their `[model]` settings; PODNet and GeoDL need one with stages."""
    from fcil.models.registry import NETWORKS

    rows = [
        asdict(row)
        | {"settings": [*sorted(NETWORKS[row.name].reads), *row.settings], "stages": NETWORKS[row.name].stages}
        for row in NETWORKS.rows()
    ]
    _print_members("network", rows, as_json, "settings", "stages", "package")


@app.command("presets")
def list_presets(as_json: AsJson = False) -> None:
    """List the experiments that ship with fcil, and their sizes."""
    from fcil.experiment.presets import LISTED, listings

    if as_json:
        _print_json([asdict(listing) for listing in listings()])
        return
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
    as_json: AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as a Markdown page.")] = False,
) -> None:
    """List the settings of a TOML file or --set, with their defaults."""
    from fcil.experiment.config import setting_rows
    from fcil.reporting.tables import settings_page

    if as_json and markdown:
        raise ConfigError("--json and --markdown: the settings are printed in one of them; leave one out")
    rows = [row for row in setting_rows() if word.lower() in f"{row[0]} {row[2]}".lower()]
    if not rows:
        raise ConfigError(f"WORD {word}: no setting has it in its key or description; `fcil list settings` has all")
    if as_json:
        _print_json([{"key": key, "default": _value(default), "description": what} for key, default, what in rows])
    elif markdown:
        typer.echo(settings_page(rows), nl=False)
    else:
        table = Table("key", "default", "what it is", box=None)
        for row in rows:
            table.add_row(*row)
        console.print(table)


@app.command("aggregators")
def list_aggregators(as_json: AsJson = False) -> None:
    """List the aggregators, which combine the clients' updates."""
    from fcil.federation.aggregation import AGGREGATORS

    _print_members("aggregator", map(asdict, AGGREGATORS.rows()), as_json, "package", "settings")


@app.command("datasets")
def list_datasets(as_json: AsJson = False) -> None:
    """List the data sets and file formats of `data.source`."""
    from fcil.data.datasets import DATASETS

    _print_members("data set", map(asdict, DATASETS.rows()), as_json, "package", "settings")


@app.command("loggers")
def list_loggers(as_json: AsJson = False) -> None:
    """List the loggers of `--log`."""
    from fcil.reporting.loggers import LOGGERS

    _print_members("logger", map(asdict, LOGGERS.rows()), as_json, "package", "settings")


@app.command("engines")
def list_engines(as_json: AsJson = False) -> None:
    """List the engines of `--engine`, which run the clients."""
    from fcil.federation.engines import ENGINES

    _print_members("engine", map(asdict, ENGINES.rows()), as_json, "package", "settings")


def _print_members(kind: str, members: Iterable[dict[str, Any]], as_json: bool, *columns: str) -> None:
    """Print the members of a registry: name, summary and these columns, or as JSON all that is known."""
    rows = list(members)
    if as_json:
        _print_json(rows)
        return
    table = Table(kind, "what it is", *columns, box=None)
    for row in rows:
        table.add_row(row["name"], row["summary"], *(_cell(row[column]) for column in columns))
    console.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return value if isinstance(value, str) else ", ".join(value)


def _value(default: str) -> Any:
    return None if default == "absent" else json.loads(default)


def _print_json(document: Any) -> None:
    typer.echo(json.dumps(document, indent=2, allow_nan=False))
