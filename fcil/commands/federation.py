"""`fcil federation`: try a real federation at home."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fcil.commands.extra import flower_extra
from fcil.config import load_config
from fcil.data.sources import load_source
from fcil.errors import ConfigError, StoppedError
from fcil.options import PLACE, Configuration, Method, Settings
from fcil.signals import stoppable


def federation(
    config: Configuration,
    sites: Annotated[int, typer.Option(min=2, max=20, help="Sites at the beginning; one more joins half-way.")] = 3,
    rounds: Annotated[int, typer.Option(min=4, help="Rounds in all; half-way a new class arrives at some sites.")] = 12,
    method: Method = None,
    settings: Settings = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", click_type=PLACE, help="A new directory for everything; by default runs/federation-NAME."
        ),
    ] = None,
) -> None:
    """Play a real federation on this machine: server, proxy and sites as processes over TLS, with throw-away keys.

    The sites' folders are cut from the data set. Half-way a class arrives that nobody had, and a site joins late. At
    the end, or on Ctrl-C, every process is ended.
    """
    with flower_extra():
        from fcil.deployment.run import deployed, server_recipe  # noqa: PLC0415
        from fcil.home import Home, Plan, free_place, models_of  # noqa: PLC0415
    chosen = [*(settings or []), *([f"method.name={method}"] if method is not None else [])]
    parsed = load_config(config, chosen)
    source = load_source(parsed.data)
    if source.classes < 4 or source.image_shape[1] != source.image_shape[2]:
        raise ConfigError(f"{config}: a federation at home needs square images of four classes at least")
    channels = {"channels": source.image_shape[0], "image_size": source.image_shape[1]}
    table = parsed.deployment.model_copy(update=channels)
    recipe = server_recipe(deployed(parsed.model_copy(update={"deployment": table})))
    place = free_place(out, config)
    place.mkdir(parents=True, exist_ok=True)
    plan = Plan(config, tuple(chosen), sites, rounds, place)
    home = Home(plan, parsed, source, typer.echo, recipe.roles().proxy is not None)
    try:
        with stoppable():
            home.play()
    except KeyboardInterrupt:
        raise StoppedError(f"interrupted; every process has ended, and {place} holds what they wrote") from None
    named = models_of(plan)
    if named:
        typer.echo(f"a site's model, with class names: {named[0]}")
