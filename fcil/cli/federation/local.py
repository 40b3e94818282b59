"""`fcil federation try`: a real federation on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fcil.cli.extra import flower_extra
from fcil.cli.options import PLACE, Configuration, Method, Settings
from fcil.cli.signals import stoppable
from fcil.core.errors import ConfigError, StoppedError

if TYPE_CHECKING:
    from fcil.deployment.local_demo import LocalDemo


def try_federation(
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
    """Run a real federation on this machine, over TLS, with throw-away keys.

    Server, proxy and sites are processes of their own, and the sites' folders are cut from the data set. Half-way a new
    class arrives and another site joins. At the end, or on Ctrl-C, every process is ended.
    """
    with flower_extra():
        from fcil.deployment.local_demo import models_of
    place = None
    try:
        with stoppable():
            chosen = [*(settings or []), *([f"method.name={method}"] if method is not None else [])]
            home = _prepared(config, chosen, sites, rounds, out)
            place = home.plan.out
            home.run()
    except KeyboardInterrupt:
        written = "nothing was started" if place is None else f"every process has ended, {place} has what they wrote"
        raise StoppedError(f"interrupted; {written}") from None
    named = models_of(home.plan)
    if named:
        typer.echo(f"a site's model, with class names: {named[0]}")


def _prepared(config: str, settings: list[str], sites: int, rounds: int, out: Path | None) -> LocalDemo:
    """Return a federation that is ready to start, in a directory of its own."""
    from fcil.data.datasets import load_source
    from fcil.deployment.local_demo import DemoPlan, LocalDemo, free_folder
    from fcil.deployment.server.run import deployment_config, server_recipe
    from fcil.experiment.config import load_config

    parsed = load_config(config, settings)
    source = load_source(parsed.data)
    if source.kind != "image":
        raise ConfigError(f"{config}: a federation at home shows sites with images; docs/tables.md leads to tables")
    if source.classes < 4 or source.image_shape[1] != source.image_shape[2]:
        raise ConfigError(f"{config}: a federation at home needs square images of four classes at least")
    channels = {"channels": source.image_shape[0], "image_size": source.image_shape[1]}
    table = parsed.deployment.model_copy(update=channels)
    recipe = server_recipe(deployment_config(parsed.model_copy(update={"deployment": table})))
    place = free_folder(out, config)
    place.mkdir(parents=True, exist_ok=True)
    plan = DemoPlan(config, tuple(settings), sites, rounds, place)
    return LocalDemo(plan, parsed, source, typer.echo, recipe.roles().proxy is not None)
