"""The command line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import fcil
from fcil.cli import keys, naming, sites
from fcil.cli.compare import compare, sweep
from fcil.cli.data import data
from fcil.cli.errors import in_sentences
from fcil.cli.evaluate import evaluate
from fcil.cli.export import export
from fcil.cli.federation import federation
from fcil.cli.leaderboard import leaderboard
from fcil.cli.new import new
from fcil.cli.options import (
    PLACE,
    Address,
    Configuration,
    Directory,
    Engine,
    Loggers,
    Method,
    Quiet,
    Settings,
    Workers,
    console,
    finite,
    show_as_written,
)
from fcil.cli.predict import predict
from fcil.cli.report import figures, report
from fcil.cli.serve import join, proxy, serve
from fcil.cli.show import print_summary, show
from fcil.cli.signals import interruptible, stoppable
from fcil.cli.watch import watch
from fcil.core.console import plain_console, warn
from fcil.core.errors import ConfigError, StoppedError, system_words
from fcil.data.datasets import DataConfig, load_source
from fcil.data.datasets.dataset import Source
from fcil.experiment.checkpoint import resuming
from fcil.experiment.config import load_config, setting_rows
from fcil.experiment.model_file import FILE as MODEL_FILE
from fcil.experiment.presets import LISTED, listings
from fcil.experiment.run import CONFIG_FILE, SUMMARY_FILE, Loader, Run, default_folder
from fcil.methods import methods
from fcil.models import networks
from fcil.reporting.loggers import Log, check_loggers
from fcil.reporting.tables import settings_page
from fcil.reporting.terminal.progress import Course, Decoding, Progress

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated class-incremental learning: run, resume and look at experiments.",
)


@app.command()
def run(
    config: Configuration,
    method: Method = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of everything random; by default the one in the configuration.")
    ] = None,
    settings: Settings = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", click_type=PLACE, help="Directory of the run; by default runs/NAME-METHOD-SEED."),
    ] = None,
    engine: Engine = None,
    workers: Workers = None,
    address: Address = None,
    log: Loggers = None,
    quiet: Quiet = False,
) -> None:
    """Run an experiment; it can be stopped at any time and resumed."""
    check_loggers(log or [])
    chosen = [*(settings or [])]
    chosen += [f"method.name={method}"] if method is not None else []
    chosen += [f"seed={seed}"] if seed is not None else []
    chosen += _engine_settings(engine, workers, address)
    parsed = load_config(config, chosen)
    with Run.start(parsed, out or default_folder(config, parsed), _loader(quiet)) as begun:
        _play(begun, log or [], quiet)


@app.command()
def resume(
    directory: Directory,
    settings: Settings = None,
    engine: Engine = None,
    workers: Workers = None,
    address: Address = None,
    log: Loggers = None,
    quiet: Quiet = False,
) -> None:
    """Continue a run after its last finished round, bit for bit; only `run.*` and places of files may be changed."""
    check_loggers(log or [])
    chosen = [*(settings or []), *_engine_settings(engine, workers, address)]
    with Run.resume(directory, chosen, _loader(quiet)) as resumed:
        _play(resumed, log or [], quiet)


def _loader(quiet: bool) -> Loader:
    """Return a loader of data sets that shows on the error stream how far decoding is, unless quiet."""

    def load(config: DataConfig) -> Source:
        with Decoding(plain_console(stderr=True), config.source, quiet) as decoding:
            return load_source(config, decoding.show)

    return load


def _engine_settings(engine: str | None, workers: int | None, address: str | None) -> list[str]:
    given = {"engine": engine, "workers": workers, "address": address}
    return [f"run.{key}={value}" for key, value in given.items() if value is not None]


@app.command("plan")
def plan_run(
    config: Configuration,
    method: Method = None,
    settings: Settings = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, callback=finite, help="How many seconds to measure this machine for.")
    ] = 20.0,
) -> None:
    """Estimate the cost of a run: samples, operations, bytes, memory, and the time on this machine."""
    from fcil.experiment.cost_estimate import make_plan  # noqa: PLC0415

    chosen = [*(settings or []), *([f"method.name={method}"] if method is not None else [])]
    plan = make_plan(load_config(config, chosen), seconds, _loader(False))
    table = Table(box=None, show_header=False)
    for row in plan.lines():
        table.add_row(*row)
    console.print(table)
    for note in plan.notes:
        console.print(f"note: {note}", soft_wrap=True)


@app.command("methods")
def list_methods() -> None:
    """List the methods and their editions."""
    table = Table("method", "what it is", "editions", box=None)
    for method in methods().values():
        table.add_row(method.name, method.summary, ", ".join(method.config.editions))
    console.print(table)


@app.command("networks")
def list_networks() -> None:
    """List the networks, the settings of `[model]` that each has, and whether it has stages (PODNet, GeoDL)."""
    table = Table("network", "what it is", "settings", "stages", box=None)
    for network in networks().values():
        table.add_row(network.name, network.summary, ", ".join(sorted(network.reads)), "yes" if network.stages else "")
    console.print(table)


@app.command("presets")
def list_presets() -> None:
    """List the configurations that come with fcil, and how large they are."""
    facts, texts = Table(*LISTED[:-1], box=None), Table(LISTED[0], LISTED[-1], box=None)
    for name, *cells, what in (listing.row() for listing in listings()):
        facts.add_row(name, *cells)
        texts.add_row(name, what)
    for table in (facts, texts):
        table.columns[0].no_wrap = True  # other commands take a name as it is
        table.columns[1].overflow = "fold"
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
        table.add_row(*row)
    console.print(table)


@app.command()
def demo(
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", click_type=PLACE, help="Directory of the runs and the report."),
    ] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 2021,
) -> None:
    """Run GLFC, plain federated averaging and Mosaic on the digits side by side, and compare them.

    A demonstration that was interrupted is continued; a finished one is kept, and the next goes to DIR-2, DIR-3 and so
    on.
    """
    from fcil.cli.demo import run_demo  # noqa: PLC0415

    with stoppable():
        run_demo(console, out, seed)


@app.command()
def bench(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A name from `fcil bench --list`; all of them by default.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", click_type=PLACE, help="Append the lines to this file as well.")
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", help="Only list the benchmarks.")] = False,
) -> None:
    """Measure speed against a reference: one line of JSON per figure, exit code 1 if a bound is missed."""
    from benchmarks.measure import benchmarks, machine, run_benchmark, summaries  # noqa: PLC0415

    if list_only:
        table = Table("benchmark", "what it measures", box=None)
        for row in summaries().items():
            table.add_row(*row)
        console.print(table)
        return
    if out is not None:
        _check_appendable(out)
    typer.echo(f"measured on {machine()}", err=True)
    missed = []
    for chosen in [name] if name is not None else list(benchmarks()):
        for measurement in run_benchmark(chosen):
            typer.echo(measurement.line())
            if out is not None:
                with out.open("a", encoding="utf-8") as file:
                    file.write(measurement.line() + "\n")
            missed += [measurement.name] if measurement.holds is False else []
    if missed:
        typer.echo(f"below their bounds: {', '.join(missed)}", err=True)
        raise typer.Exit(1)


def _check_appendable(out: Path) -> None:
    """Refuse a file that cannot be written before anything is measured; leave none where there was none."""
    new = not out.exists()
    try:
        out.open("a").close()
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written ({system_words(error)}); name a file") from error
    if new:
        out.unlink()


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


def _play(run: Run, loggers: Sequence[str], quiet: bool) -> None:
    """Play what is left of a run with progress on the screen and in its logs, and finish it."""
    for warning in run.warnings:
        warn(warning)
    with Log(loggers, warn) as log:
        log.begin(run.config.document(), run.folder, run.journal.records)
        with (
            contextlib.suppress(KeyboardInterrupt),
            interruptible() as interrupted,
            Progress(console, Course.of(run), quiet) as shown,
        ):
            for record in run.rounds():
                shown.show(record)
                log.round(record)
                if interrupted and not run.finished:
                    break
        if not run.finished:
            raise StoppedError(f"interrupted after round {run.state.round}; continue with: {resuming(run.folder)}")
        summary = run.finish()
        log.end(summary)
    if quiet:
        typer.echo(str(run.folder))
        return
    print_summary(summary, run.config.document())
    places = {"results": SUMMARY_FILE, "model": MODEL_FILE, "settings": CONFIG_FILE}
    console.print("   ".join(f"{what}: {run.folder / file}" for what, file in places.items()), soft_wrap=True)


PAGES: tuple[Callable[..., None], ...] = (
    show,
    new,
    data,
    report,
    figures,
    watch,
    predict,
    evaluate,
    export,
    naming.name,
)
TABLES: tuple[Callable[..., None], ...] = (compare, sweep, leaderboard)
PARTIES: tuple[Callable[..., None], ...] = (serve, join, proxy, federation)
for command in (*TABLES, *PAGES, *PARTIES):
    app.command()(command)
app.add_typer(keys.app, name="keys")
app.add_typer(sites.app, name="sites")
for part in (app, keys.app, sites.app):
    show_as_written(part)


def main() -> None:
    """Run the command line."""
    with in_sentences():
        sys.exit(app(standalone_mode=False))  # None, or the code of a typer.Exit
