"""`fcil audit`: how much the parties of an experiment learn of private images, measured by attacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fcil.cli.options import PLACE, AsJson, Method, Settings, console
from fcil.cli.run import shown_loader

JSON, PAGE = "audit.json", "audit.html"


def audit(
    config: Annotated[
        str, typer.Argument(metavar="DIR|CONFIG|PRESET", help="A run's directory, a TOML file, or a preset.")
    ],
    method: Method = None,
    settings: Settings = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", click_type=PLACE, help="Folder of audit.html and audit.json, by default the run's."
        ),
    ] = None,
    shadows: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=256,
            help="Shadow models, each a run on half of the images, and one more run with canaries; 0: neither.",
        ),
    ] = 4,
    as_json: AsJson = False,
) -> None:
    """Attack an experiment: measure what server, proxy and other sites learn of private images.

    The experiment is run once more, and once for each shadow model. A configuration needs no earlier run; name a
    folder with --out.
    """
    from fcil.core.errors import ConfigError
    from fcil.core.files import write_atomically, write_json
    from fcil.experiment.audit import audit as attacked
    from fcil.experiment.config import load_config
    from fcil.experiment.run import configuration_of
    from fcil.reporting.audit_page import COLUMNS, audit_page, lines

    chosen = [*(settings or []), *([f"method.name={method}"] if method is not None else [])]
    folder = Path(config)
    is_run = folder.is_dir()
    if is_run and chosen:
        raise ConfigError(f"{config} is a run, whose settings are known; audit a configuration to change some")
    if not is_run and out is None:
        raise ConfigError("--out: missing; it must be given, as a configuration has no folder of its own")
    parsed = configuration_of(folder) if is_run else load_config(config, chosen)
    place = out or folder
    place.mkdir(parents=True, exist_ok=True)
    found = attacked(parsed, shown_loader(as_json)(parsed.data), shadows)
    title = f"Audit of {parsed.method_name}, {parsed.data.source}, seed {parsed.seed}"
    write_json(place / JSON, {"title": title, **found.document()})
    write_atomically(place / PAGE, audit_page(found, title).encode())
    if as_json:
        typer.echo(json.dumps(found.document(), allow_nan=False))
        return
    table = Table(*COLUMNS, box=None)
    for row in lines(found.findings):
        table.add_row(*row)
    console.print(table)
    console.print(f"page: {place / PAGE}   figures: {place / JSON}", soft_wrap=True)
