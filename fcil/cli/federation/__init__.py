"""`fcil federation`: a federation between real sites, and a trial of one on a single machine."""

from __future__ import annotations

import typer

from fcil.cli.federation import keys, sites
from fcil.cli.federation.local import try_federation
from fcil.cli.federation.naming import name
from fcil.cli.federation.parties import join, proxy, serve

app = typer.Typer(no_args_is_help=True, help="Run a federation between real sites, or try one here.")
app.command("try")(try_federation)
for command in (serve, join, proxy):
    app.command()(command)
app.add_typer(keys.app, name="keys")
app.add_typer(sites.app, name="sites")
app.command()(name)
