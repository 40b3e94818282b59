"""`fcil compare`: many runs of one experiment, and tables and curves of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer
from rich.console import Console

from fcil.cli.completion import complete_methods
from fcil.cli.options import PLACE, AsJson, Configuration, Jobs, Keep, Loggers, Seeds, Settings, console
from fcil.cli.signals import stoppable
from fcil.core.console import plain_console
from fcil.core.errors import ConfigError
from fcil.reporting.compare.cells import cases_of_methods, cases_of_sweep, split_values

if TYPE_CHECKING:
    from fcil.reporting.compare.runner import Grid
    from fcil.reporting.compare.tables import Runs

Folder = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        click_type=PLACE,
        help="Directory of all runs and the tables; by default runs/compare-NAME, or runs/sweep-NAME.",
    ),
]


def compare(
    config: Configuration,
    names: Annotated[
        str | None,
        typer.Option(
            "--methods",
            metavar="A,B,...",
            autocompletion=complete_methods,
            help="Names from `fcil list methods`, with commas between, or `all`; with --sweep by default the "
            "configured one.",
        ),
    ] = None,
    seeds: Seeds = "2021,2022,2023",
    sweep: Annotated[
        str | None,
        typer.Option(metavar="KEY.PATH=V,V,...", help="Compare values of this setting: a row per method and value."),
    ] = None,
    out: Folder = None,
    jobs: Jobs = 1,
    settings: Settings = None,
    ours: Annotated[
        str | None, typer.Option(help="The method that the others are compared with; by default glfc, or the first.")
    ] = None,
    keep: Keep = None,
    log: Loggers = None,
    as_json: AsJson = False,
) -> None:
    """Compare methods, or values of a setting, over several seeds.

    Tables and curves like the paper's are written. Only missing runs are run: the same command continues an interrupted
    comparison.
    """
    from fcil.methods import methods
    from fcil.reporting.compare.runner import Grid

    if names is None and sweep is None:
        raise click.UsageError("Missing option '--methods' or '--sweep'.", click.get_current_context())
    chosen = list(methods()) if names == "all" else split_values(names or "")
    numbers, place = _numbers(seeds), _place(out, "compare" if sweep is None else "sweep", config)
    if sweep is not None:
        if ours is not None:
            raise ConfigError(f"--ours {ours}: with --sweep no method is compared with the others; leave one out")
        cases = cases_of_sweep(sweep, chosen)
        grid = Grid(config, cases, numbers, place, settings or [], keep, log or [])
        _sweep(grid, jobs, as_json, f"{Path(config).stem}: sweep over {sweep.partition('=')[0]}")
        return
    if not chosen:
        raise ConfigError("--methods is empty; name some of `fcil list methods`, with commas between, or write all")
    if ours is not None and ours not in chosen:
        raise ConfigError(f"--ours {ours}: it should be one of the methods compared, {', '.join(chosen)}")
    reference = ours or ("glfc" if "glfc" in chosen else None)
    grid = Grid(config, cases_of_methods(chosen), numbers, place, settings or [], keep, log or [])
    _compare(grid, jobs, as_json, f"{Path(config).stem}: methods side by side", reference)


def _sweep(grid: Grid, jobs: int, as_json: bool, title: str) -> None:
    """Compare the values of a setting, and name the values that made no difference."""
    runs = _compare(grid, jobs, as_json, title, None)
    for labels in alike(runs):
        _screen(as_json).print(
            f"note: {', '.join(labels)}: all accuracies are the same; it may have no effect here", soft_wrap=True
        )


def _place(out: Path | None, kind: str, config: str) -> Path:
    return out or Path("runs") / f"{kind}-{Path(config).stem}"


def _numbers(text: str) -> list[int]:
    wrong = ConfigError(f"--seeds {text}: write whole numbers with commas between, for instance 2021,2022")
    try:
        numbers = [int(part) for part in split_values(text)]
    except ValueError as error:
        raise wrong from error
    if not numbers:
        raise wrong
    return numbers


def alike(runs: Runs) -> list[list[str]]:
    """Return the labels of rows whose runs learned the same with every seed, if there are any such groups."""
    groups: dict[str, list[str]] = {}
    for label, by_seed in runs.items():
        learned = {seed: [summary["method"], summary["accuracy_matrix"]] for seed, summary in sorted(by_seed.items())}
        groups.setdefault(json.dumps(learned), []).append(label)
    groups.pop(json.dumps({}), None)  # rows without a finished run
    return [labels for labels in groups.values() if len(labels) > 1]


def _screen(as_json: bool) -> Console:
    """Return where lines for people go: beside a JSON document, to the error stream."""
    return plain_console(stderr=True) if as_json else console


def _compare(grid: Grid, jobs: int, as_json: bool, title: str, ours: str | None) -> Runs:
    """Run a grid, write its tables, report where they are and which runs failed, and return the finished runs."""
    from fcil.experiment.run_directory import SUMMARY_FILE
    from fcil.reporting.compare.output import write_comparison
    from fcil.reporting.compare.tables import processors_sentence, table_markdown
    from fcil.reporting.loggers import check_loggers
    from fcil.reporting.terminal.multi_progress import Bars

    check_loggers(grid.log)
    screen = _screen(as_json)
    with stoppable(), Bars(screen) as bars:
        runs = grid.run(jobs, lambda line: screen.print(line, soft_wrap=True), bars)
    if any(runs.values()):
        comparison = write_comparison(runs, title, grid.out, ours, grid.published(), grid.processors)
        if as_json:
            document = {"title": title, "folder": str(grid.out), **asdict(comparison)}
            typer.echo(json.dumps(document, allow_nan=False))
        else:
            console.print(table_markdown(comparison), soft_wrap=True)
            console.print(processors_sentence(comparison), soft_wrap=True)
        screen.print(f"tables and curves: {grid.out}/table.md, .tex, .csv, curves.png, .svg", soft_wrap=True)
        names = {f"{case.name}-{seed}" for case in grid.cases for seed in grid.seeds}
        others = sorted(
            path.parent.name for path in grid.out.glob(f"*/{SUMMARY_FILE}") if path.parent.name not in names
        )
        if others:
            screen.print(f"note: {grid.out} also holds {', '.join(others)}; not in these tables", soft_wrap=True)
    for name, log in grid.failed.items():
        remedy = "put right what it says" if name in grid.refused else "the same command continues it"
        typer.echo(f"{name} failed, see {log}; {remedy}", err=True)
    if grid.failed:
        raise typer.Exit(2 if len(grid.refused) == len(runs) * len(grid.seeds) else 1)
    return runs
