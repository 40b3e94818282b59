"""`fcil show`: the figures of a run or of a server, finished or not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fcil.cli.options import Directory, console
from fcil.core.files import exists

if TYPE_CHECKING:
    from fcil.experiment.summary import Summary


def show(
    directory: Directory,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all that is known of the run as one JSON document, for scripts.")
    ] = False,
) -> None:
    """Show the figures of a run or of a server, finished or not."""
    from fcil.deployment.server.state import ServedCheckpoint
    from fcil.experiment.restore import newest_checkpoint
    from fcil.experiment.run import SUMMARY_FILE, read_summary
    from fcil.reporting.load_runs import run_facts
    from fcil.reporting.run_facts import RunFacts, as_document

    if as_json:
        typer.echo(json.dumps(as_document(run_facts(directory)), allow_nan=False))
        return
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
    from fcil.reporting.terminal.report import report_on
    from fcil.reporting.terminal.tables import print_report

    facts = f"edition {summary['edition']}, seed {summary['seed']}, {measured or config['data']['source']}"
    print_report(console, report_on(f"{summary['method']} ({facts})", [summary]))
