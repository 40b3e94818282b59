"""The command line."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import fcil
from fcil.config import load_config, parse_config, preset_names, read_document, setting_rows
from fcil.errors import FcilError, FederationError
from fcil.experiment import CONFIG_FILE, SUMMARY_FILE, Run, read_summary
from fcil.methods import methods
from fcil.progress import Progress, print_summary
from fcil.results.model import FILE as MODEL_FILE
from fcil.results.tables import settings_page

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated class-incremental learning: run, resume and look at experiments.",
)
console = Console(highlight=False)
if not console.is_terminal:
    console.width = 140  # a file or a pipe has no edge to wrap at

INTERRUPTED = 130
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY.PATH=VALUE", help="Change one setting; repeatable.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors and the run's directory.")]


@app.command()
def run(
    config: Annotated[str, typer.Argument(metavar="CONFIG|PRESET", help="A TOML file, or a name from `fcil presets`.")],
    method: Annotated[str | None, typer.Option(help="A name from `fcil methods`.")] = None,
    seed: Annotated[int | None, typer.Option(help="Root of all randomness.")] = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Directory of the run.")] = None,
    engine: Annotated[str | None, typer.Option(help="Where clients run: serial.")] = None,
    quiet: Quiet = False,
) -> None:
    """Run an experiment; it can be killed at any time and resumed."""
    chosen = [*(settings or [])]
    chosen += [f"method.name={method}"] if method is not None else []
    chosen += [f"seed={seed}"] if seed is not None else []
    chosen += [f"run.engine={engine}"] if engine is not None else []
    parsed = load_config(config, chosen)
    folder = out or Path("runs") / f"{Path(config).stem}-{parsed.method_name}-{parsed.seed}"
    with Run.start(parsed, folder) as begun:
        _play(begun, quiet)


@app.command()
def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a run.")],
    settings: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Continue a run after its last finished round, to the same bits; only `run.*` may be set anew."""
    with Run.resume(directory, settings) as resumed:
        _play(resumed, quiet)


@app.command("methods")
def list_methods() -> None:
    """List the methods and their presets."""
    table = Table("method", "what it is", "presets", box=None)
    for method in methods().values():
        table.add_row(method.name, method.summary, ", ".join(method.config.presets))
    console.print(table)


@app.command("presets")
def list_presets() -> None:
    """List the configurations that come with fcil."""
    table = Table("preset", "what it is", "tasks x rounds", "method", box=None)
    for name in preset_names():
        config = parse_config(read_document(name))
        tasks = config.scenario.tasks if isinstance(config.scenario.tasks, int) else len(config.scenario.tasks)
        table.add_row(name, config.description, f"{tasks} x {config.scenario.rounds_per_task}", config.method_name)
    console.print(table)


@app.command("settings")
def list_settings(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table as Markdown (docs/settings.md).")
    ] = False,
) -> None:
    """List every setting that a TOML file or --set can change, with its default."""
    rows = setting_rows()
    if markdown:
        typer.echo(settings_page(rows), nl=False)
        return
    table = Table("key", "default", "what it is", box=None)
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)


@app.command()
def show(directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a run.")]) -> None:
    """Show the figures of a run, finished or not."""
    print_summary(console, *read_summary(directory))


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the demonstration.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Root of all randomness.")] = 2021,
) -> None:
    """Run GLFC and plain federated averaging on the digits side by side, and compare them."""
    from fcil.demo import run_demo  # noqa: PLC0415

    run_demo(console, out, seed)


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"fcil {fcil.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Hold the options that come before a command."""


def _play(run: Run, quiet: bool) -> None:
    """Play what is left of a run with progress on the screen, and finish it."""
    for warning in run.warnings:
        typer.echo(f"warning: {warning}", err=True)
    with _interruptible() as interrupted, Progress(console, run, quiet) as progress:
        for record in run.rounds():
            progress.show(record)
            if interrupted and not run.finished:
                break
    if not run.finished:
        typer.echo(f"interrupted after round {run.state.round}; continue with: fcil resume {run.folder}", err=True)
        raise typer.Exit(INTERRUPTED)
    summary = run.finish()
    if quiet:
        typer.echo(str(run.folder))
        return
    print_summary(console, summary, run.config.document())
    places = {"results": SUMMARY_FILE, "model": MODEL_FILE, "settings": CONFIG_FILE}
    console.print("   ".join(f"{what}: {run.folder / file}" for what, file in places.items()), soft_wrap=True)


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """Give a list that is no longer empty once Ctrl-C or SIGTERM came; a second one stops at once."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)
        typer.echo("finishing this round and its checkpoint; once more to stop at once", err=True)

    former = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def main() -> None:
    """Run the command line; what a user can put right becomes one sentence and exit code 2."""
    try:
        app()
    except FederationError as error:
        typer.echo(f"the federation stopped: {error}", err=True)
        sys.exit(1)
    except FcilError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("stopped; the last finished round is kept", err=True)
        sys.exit(INTERRUPTED)
