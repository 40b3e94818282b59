"""Options and arguments that several commands share, and the type of a path."""

from __future__ import annotations

import errno
import inspect
import math
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from rich.markup import escape

from fcil.cli.completion import complete_config, complete_method, complete_setting
from fcil.core.console import plain_console
from fcil.core.errors import ConfigError
from fcil.core.files import exists


class Place(click.ParamType):
    """A path that the system can look up, whether it exists or not.

    An empty one, which an unset variable of a shell leaves behind, would be the working directory.
    """

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if isinstance(value, Path):  # a default
            return value
        option = param.opts[0] if isinstance(param, click.Option) else (param and param.metavar) or "DIR"
        if not value:
            raise ConfigError(f'{option} "": the path is empty; name a place, or . for the working directory')
        try:
            Path(value).stat()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise ConfigError(f"{option} {value}: {error.strerror}; name another place") from error
        return Path(value)


def finite(param: typer.CallbackParam, value: float) -> float:
    """Refuse NaN and infinity, which typer's ranges let through."""
    if not math.isfinite(value):
        raise ConfigError(f"{param.opts[0]}: found {value}, should be a finite number")
    return value


PLACE = Place()
console = plain_console()
if not console.is_terminal:
    console.width = 140  # a file or a pipe has no edge to wrap at
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, for scripts.")]
Configuration = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG|PRESET",
        help="A TOML file, or a name from `fcil list presets`.",
        autocompletion=complete_config,
    ),
]
Directory = Annotated[Path, typer.Argument(metavar="DIR", click_type=PLACE, help="Directory of a run.")]
Model = Annotated[
    Path,
    typer.Argument(
        metavar="DIR|MODEL",
        click_type=PLACE,
        help="Directory of a run or a release, a site's --state folder, or a model file.",
    ),
]
Device = Annotated[str, typer.Option(help="Where networks run: cpu, cuda or mps.")]
Method = Annotated[
    str | None,
    typer.Option(
        help="A name from `fcil list methods`; by default the one in the configuration.",
        autocompletion=complete_method,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY.PATH=VALUE",
        help="Change one setting of `fcil list settings`; may be repeated.",
        autocompletion=complete_setting,
    ),
]
Engine = Annotated[str | None, typer.Option(help="Where clients run: auto, or a name from `fcil list engines`.")]
Workers = Annotated[int | None, typer.Option(help="Worker processes of the engine; 0 means one per core or GPU.")]
Address = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Address of a Ray cluster, with --engine ray; by default a local one."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only the run's directory, warnings and errors.")]
Loggers = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        metavar="NAME",
        help="Write each round's figures for another program: a name from `fcil list loggers`; may be repeated.",
    ),
]
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


def new_file(option: str, path: Path) -> Path:
    """Return the path of a file that does not exist yet, in a folder that does."""
    if exists(path):
        raise ConfigError(f"{option} {path}: the file exists; name another one")
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: {path.parent} is not a folder; name a file in one that exists")
    return path


def show_as_written(app: typer.Typer) -> None:
    """Use docstrings as help texts: paragraphs, without rich markup for `[model]`."""
    for command in app.registered_commands:
        paragraphs = inspect.cleandoc((command.callback and command.callback.__doc__) or "").split("\n\n")
        command.help = escape("\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs))
