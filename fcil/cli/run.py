"""`fcil run` and `fcil resume`: one experiment, from its start or from its last checkpoint."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
)
from fcil.cli.show import print_summary
from fcil.cli.signals import interruptible
from fcil.core.console import plain_console, warn
from fcil.core.errors import StoppedError

if TYPE_CHECKING:
    from fcil.data.datasets import DataConfig
    from fcil.data.datasets.dataset import Source
    from fcil.experiment.run import Loader, Run


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
    """Run an experiment. It can be stopped at any time and resumed."""
    from fcil.experiment.config import load_config
    from fcil.experiment.run import Run, default_folder
    from fcil.reporting.loggers import check_loggers

    check_loggers(log or [])
    chosen = [*(settings or [])]
    chosen += [f"method.name={method}"] if method is not None else []
    chosen += [f"seed={seed}"] if seed is not None else []
    chosen += _engine_settings(engine, workers, address)
    parsed = load_config(config, chosen)
    with Run.start(parsed, out or default_folder(config, parsed), shown_loader(quiet)) as begun:
        _train(begun, log or [], quiet)


def resume(
    directory: Directory,
    settings: Settings = None,
    engine: Engine = None,
    workers: Workers = None,
    address: Address = None,
    log: Loggers = None,
    quiet: Quiet = False,
) -> None:
    """Continue a run after its last finished round, bit for bit.

    Only `run.*` settings and the paths of data and weights may be changed.
    """
    from fcil.experiment.run import Run
    from fcil.reporting.loggers import check_loggers

    check_loggers(log or [])
    chosen = [*(settings or []), *_engine_settings(engine, workers, address)]
    with Run.resume(directory, chosen, shown_loader(quiet)) as resumed:
        _train(resumed, log or [], quiet)


def shown_loader(quiet: bool) -> Loader:
    """Return a loader of data sets that shows the progress of decoding on the error stream, unless quiet."""
    from fcil.data.datasets import load_source
    from fcil.reporting.terminal.progress import Decoding

    def load(config: DataConfig) -> Source:
        with Decoding(plain_console(stderr=True), config.source, quiet) as decoding:
            return load_source(config, decoding.show)

    return load


def advise_once() -> None:
    """Say to a person, once on this machine, how to get the faster allocator; nothing where it is or cannot be had."""
    from fcil.core.allocator import ADVICE, library
    from fcil.data.datasets.search_path import cache_folder

    if sys.platform != "linux" or library() is not None or not sys.stderr.isatty():
        return
    said = cache_folder() / "advised-tcmalloc"
    with contextlib.suppress(OSError):  # where it cannot be noted that it was said, it is not said
        said.parent.mkdir(parents=True, exist_ok=True)
        with said.open("x"):
            typer.echo(f"hint: {ADVICE}", err=True)


def _engine_settings(engine: str | None, workers: int | None, address: str | None) -> list[str]:
    given = {"engine": engine, "workers": workers, "address": address}
    return [f"run.{key}={value}" for key, value in given.items() if value is not None]


def _train(run: Run, loggers: Sequence[str], quiet: bool) -> None:
    """Run the remaining rounds with progress on the screen and in the logs, and finish the run."""
    from fcil.experiment.checkpoint import resuming
    from fcil.experiment.model_file import FILE as MODEL_FILE
    from fcil.experiment.run_directory import CONFIG_FILE, SUMMARY_FILE
    from fcil.reporting.loggers import Log
    from fcil.reporting.terminal.progress import Course, Progress

    for warning in run.warnings:
        warn(warning)
    if not quiet:
        advise_once()
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
