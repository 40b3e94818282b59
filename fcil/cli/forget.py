"""`fcil forget`: exact unlearning of samples in a run of the method `analytic`, or at a site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fcil.cli.options import PLACE
from fcil.core.errors import ConfigError


def forget(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", click_type=PLACE, help="Directory of a run, or a stopped site's --state folder."),
    ],
    client: Annotated[
        int | None, typer.Option(min=0, help="Only samples of the client with this number; by default of all.")
    ] = None,
    class_name: Annotated[
        str | None, typer.Option("--class", metavar="NAME", help="Only samples of this class.")
    ] = None,
    samples: Annotated[
        list[str] | None,
        typer.Option(
            "--sample",
            metavar="N|FILE",
            help="Only the training sample of this number, at a site the image of this file in its folder; may be "
            "repeated.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All samples of a site.")] = False,
) -> None:
    """Withdraw samples from the sums of the method analytic: those of a client, of a class, or single ones.

    Their sums are subtracted, so the model is the one of all other samples. What has been written about the rounds
    stays as it was. A site withdraws them in its next rounds.
    """
    from fcil.deployment.client.withdrawal import is_site, withdraw_at_site
    from fcil.experiment.forget import Selection
    from fcil.experiment.forget import forget as forgotten

    if is_site(directory):
        if client is not None or not (everything or class_name or samples):
            raise ConfigError(f"{directory} is a site's; name a --class, a --sample or --all, and no --client")
        count = withdraw_at_site(directory, class_name, samples or ())
        typer.echo(f"{count} images are withdrawn in the next rounds of this site")
        return
    wrong = [name for name in samples or () if not name.isdecimal()]
    if wrong or everything:
        raise ConfigError(f"{'--all' if everything else f'--sample {wrong[0]}'}: of a run, name a --client or numbers")
    lost = forgotten(directory, Selection(client, class_name, tuple(map(int, samples or ()))))
    for number, count in lost.items():
        typer.echo(f"client {number}: {count} samples are forgotten")
    if not lost:
        typer.echo("no such samples are in the sums")
