"""`fcil federation set`: settings that change while a server runs."""

from __future__ import annotations

from typing import Annotated

import typer

from fcil.cli.extra import flower_extra
from fcil.cli.federation.releases import KEYS, RUN, Keys, Run, note
from fcil.core.errors import ConfigError
from fcil.core.files import read_json


def set_settings(
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Deployment settings, for instance deployment.deadline=60."),
    ] = None,
    run: Run = RUN,
    keys: Keys = KEYS,
    clear: Annotated[
        bool, typer.Option("--clear", help="Undo all changes: go back to what the server was started with.")
    ] = False,
) -> None:
    """Change settings of a server, also while it runs; without KEY=VALUE print the changes.

    A running server follows before its next round. The changes stay when it starts again.
    """
    with flower_extra():
        from fcil.deployment.server import live_settings
    from fcil.experiment.config import DeploymentConfig
    from fcil.experiment.run_directory import CONFIG_FILE

    if clear and settings:
        raise ConfigError("--clear takes no KEY=VALUE; change settings afterwards")
    begun = DeploymentConfig(**read_json(run / CONFIG_FILE)["deployment"])
    if clear:
        note(run, keys, "reconfigured", settings={})
        live_settings.store(run, {})
    elif settings:
        wanted = live_settings.wanted(run, begun, settings)
        note(run, keys, "reconfigured", settings=wanted)
        live_settings.store(run, wanted)
    changes = live_settings.read_changes(run)
    typer.echo(live_settings.in_words(changes) or "nothing is changed: the server's own settings hold")
