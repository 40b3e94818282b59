"""Options that several commands of the command line share, and how a place on the disk is taken."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Annotated, Any

import click
import typer

from fcil.errors import ConfigError


class Place(click.ParamType):
    """A path that the system can look up, whether it exists or not.

    An empty one, which an unset variable of a shell leaves behind, would be the working directory.
    """

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if isinstance(value, Path):  # a default
            return value
        option = param.opts[0] if isinstance(param, click.Option) else "DIR"
        if not value:
            raise ConfigError(f'{option} "": the path is empty; name a place, or . for the working directory')
        try:
            Path(value).stat()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise ConfigError(f"{option} {value}: {error.strerror}; name another place") from error
        return Path(value)


PLACE = Place()
Configuration = Annotated[
    str, typer.Argument(metavar="CONFIG|PRESET", help="A TOML file, or a name from `fcil presets`.")
]
Directory = Annotated[Path, typer.Argument(metavar="DIR", click_type=PLACE, help="Directory of a run.")]
Method = Annotated[
    str | None, typer.Option(help="A name from `fcil methods`; by default the one in the configuration.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Change one setting of `fcil settings`; may be repeated."),
]
Engine = Annotated[str | None, typer.Option(help="Where clients run: auto, serial, processes or ray.")]
Workers = Annotated[
    int | None, typer.Option(help="Workers of the engines processes and ray; 0: one per core, or one per GPU.")
]
Address = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Address of a Ray cluster, with --engine ray; by default a local one."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only the run's directory, warnings and errors.")]
Seeds = Annotated[str, typer.Option(metavar="N,N,...", help="Seeds, with commas between; one run per seed.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at the same time; if more than one, each uses one core.")]
Keep = Annotated[
    Path | None,
    typer.Option(
        "--results",
        metavar="DIR",
        click_type=PLACE,
        help="Keep each run's figures here as well; runs whose figures are found here are not run again.",
    ),
]
