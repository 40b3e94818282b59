"""`fcil plan`: the cost of a run."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from fcil.cli.options import AsJson, Configuration, Method, Settings, console, finite
from fcil.cli.run import shown_loader


def plan(
    config: Configuration,
    method: Method = None,
    settings: Settings = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, callback=finite, help="How many seconds to measure this machine for.")
    ] = 6.0,
    as_json: AsJson = False,
) -> None:
    """Estimate the time, memory and traffic of a run on this machine.

    The machine is measured for some seconds, by CPU time, so other work on it does not count. Nothing is written.
    """
    from fcil.experiment.config import load_config
    from fcil.experiment.cost_estimate import make_plan

    chosen = [*(settings or []), *([f"method.name={method}"] if method is not None else [])]
    found = make_plan(load_config(config, chosen), seconds, shown_loader(as_json))
    if as_json:
        typer.echo(json.dumps(asdict(found), allow_nan=False))
        return
    table = Table(box=None, show_header=False)
    for row in found.lines():
        table.add_row(*row)
    console.print(table)
    for note in found.notes:
        console.print(f"note: {note}", soft_wrap=True)
