"""The ServerApp: it plays an experiment of fcil round by round, with Flower's nodes as workers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch  # noqa: F401 (an app has to import it itself)
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fcil.experiment.config import Config, load_config
from fcil.experiment.run import Run
from fcil.federation.engines.flower.engine import FlowerEngine
from fcil.federation.round_record import RoundRecord

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the experiment that the run's configuration names; a federation that stops fails Flower's run."""
    options = context.run_config
    config = read(options)
    folder = Path(str(options["out"]) or f"runs/flower-{config.method_name}-{config.seed}").expanduser().absolute()
    with Run.start(config, folder, engine=lambda place: FlowerEngine(place, grid)) as run:
        for warning in run.warnings:
            print(f"warning: {warning}")
        print(f"{config.method_name} on {run.source.name}: {run.scenario.rounds} rounds, in {folder}")
        for record in run.rounds():
            print(line(record, run.scenario.rounds))
        summary = run.finish()
    print(f"accuracy after each task: {summary['accuracy']}, average {summary['average']:.1f}")


def read(options: Mapping[str, bool | float | int | str]) -> Config:
    """Return fcil's configuration from that of Flower's run."""
    settings = [setting.strip() for setting in str(options["settings"]).split(";") if setting.strip()]
    named = [f"method.name={options['method']}", f"seed={options['seed']}"]
    return load_config(str(options["config"]), [*settings, *named])


def line(record: RoundRecord, rounds: int) -> str:
    """Return a round in one line."""
    known = f"round {record.round + 1} of {rounds}: {record.classes} classes, {record.reports} reports"
    failed = f", {len(record.failures)} failed" if record.failures else ""
    measured = f", accuracy {100 * sum(record.correct) / sum(record.total):.1f}" if sum(record.total or []) else ""
    return f"{known}{failed}{measured}, {record.seconds:.1f} s"
