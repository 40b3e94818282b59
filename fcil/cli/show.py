"""`fcil show`: the figures of a run, of a server or of a kept result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fcil.cli.options import PLACE, AsJson, console
from fcil.core.files import exists

if TYPE_CHECKING:
    from fcil.experiment.summary import Summary


def show(
    place: Annotated[
        Path,
        typer.Argument(metavar="DIR|FILE", click_type=PLACE, help="Directory of a run, or a kept result (JSON file)."),
    ],
    as_json: AsJson = False,
) -> None:
    """Show the figures of a run, a server or a kept result.

    Runs need not be finished. Kept results are the JSON files of `fcil compare --results`.
    """
    from fcil.reporting.load_runs import kept_facts, run_facts
    from fcil.reporting.run_facts import as_document

    if as_json:
        typer.echo(json.dumps(as_document(kept_facts(place) if place.is_file() else run_facts(place)), allow_nan=False))
    elif place.is_file():
        kept = kept_facts(place)
        print_summary(kept.summary, kept.config)
    else:
        _show_run(place)


def _show_run(directory: Path) -> None:
    """Print the figures of the run in a directory, and how far it is."""
    from fcil.deployment.server.state import ServedCheckpoint
    from fcil.experiment.restore import newest_checkpoint
    from fcil.experiment.run import read_summary
    from fcil.experiment.run_directory import SUMMARY_FILE
    from fcil.reporting.run_facts import RunFacts

    summary, config = read_summary(directory)
    checkpoint = newest_checkpoint(directory)
    served = isinstance(checkpoint, ServedCheckpoint)
    measured = "on the sites' hold-out images; a task is a block of classes" if served else None
    print_summary(summary, config, measured)
    if not exists(directory / SUMMARY_FILE):
        planned = RunFacts(directory.name, "server" if served else "simulation", summary, config).planned_rounds
        rounds = f"{checkpoint.rounds} rounds so far" if planned is None else f"{checkpoint.rounds} of {planned} rounds"
        advice = checkpoint.advice(directory)
        console.print(f"not finished: {rounds}; unless it is running, {advice} continues it", soft_wrap=True)


def print_summary(summary: Summary, config: Mapping[str, Any], measured: str | None = None) -> None:
    """Print the figures of a run, and where they were measured: by default on the test set of its data."""
    from fcil.reporting.terminal.report import print_report, report_on

    facts = f"edition {summary['edition']}, seed {summary['seed']}, {measured or config['data']['source']}"
    print_report(console, report_on(f"{summary['method']} ({facts})", [summary]))
