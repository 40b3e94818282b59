"""`fcil federation`: a federation between real sites, and a trial of one on a single machine."""

from __future__ import annotations

import typer

from fcil.cli.federation import classes, keys, sites
from fcil.cli.federation.backup import backup
from fcil.cli.federation.columns import columns
from fcil.cli.federation.invited import init
from fcil.cli.federation.local import try_federation
from fcil.cli.federation.naming import name
from fcil.cli.federation.parties import join, proxy, serve
from fcil.cli.federation.releases import release, rollback
from fcil.cli.federation.settings import set_settings
from fcil.cli.federation.status import status

app = typer.Typer(no_args_is_help=True, help="Run a federation between real sites, or try one here.")
app.command("try")(try_federation)
for command in (init, serve, join, proxy, status, backup, release, rollback):
    app.command()(command)
app.add_typer(keys.app, name="keys")
app.add_typer(sites.app, name="sites")
app.add_typer(classes.app, name="classes")
app.command()(columns)
app.command()(name)
app.command("set")(set_settings)
