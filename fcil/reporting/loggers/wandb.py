"""`wandb`: an offline run in the folder wandb/ of the run's, for Weights & Biases; only `wandb sync` sends it."""

from __future__ import annotations

import importlib
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fcil.core.registry import Member
from fcil.experiment.logger import register_logger
from fcil.experiment.summary import Summary
from fcil.federation.round_record import RoundRecord
from fcil.reporting.loggers.base import metrics, totals

FOLDER, IDENTITY, PROJECT = "wandb", "fcil-run-id", "fcil"


class WandbLogger:
    """Writes an offline run with every round, under the id that the run's folder has had from its beginning."""

    def __init__(self) -> None:
        self._run: Any = None
        self._finished = False

    def begin(self, config: Mapping[str, Any], folder: Path) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it would send reports of its own failures
        wandb = importlib.import_module("wandb")
        identity = _identity(folder / FOLDER)
        for former in (folder / FOLDER).glob(f"offline-run-*-{identity}"):
            shutil.rmtree(former)  # wandb cannot add to an offline run; all of it is written again
        self._run = wandb.init(
            mode="offline",
            dir=str(folder),
            project=PROJECT,
            name=folder.name,
            id=identity,
            config=dict(config),
            settings=wandb.Settings(silent=True, console="off"),
        )

    def round(self, record: RoundRecord) -> None:
        self._run.log(metrics(record), step=record.round)

    def end(self, summary: Summary) -> None:
        self._run.summary.update(totals(summary))
        self._finished = True

    def close(self) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if self._finished else 1)
            self._run = None


def _identity(folder: Path) -> str:
    """Return the id that was drawn for the log in a folder, or draw it."""
    folder.mkdir(exist_ok=True)
    path = folder / IDENTITY
    if not path.is_file():
        path.write_text(secrets.token_hex(4), "ascii")
    return path.read_text("ascii")


register_logger(
    Member(
        "wandb",
        "an offline run for Weights & Biases, in the run's folder",
        lambda settings: WandbLogger(),
        requires="wandb",
        remedy="install the package wandb, or use csv",
    )
)
