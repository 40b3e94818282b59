"""`tensorboard`: event files in the folder tensorboard/ of the run's, for TensorBoard."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fcil.core.registry import Member
from fcil.experiment.logger import register_logger
from fcil.experiment.summary import Summary
from fcil.federation.round_record import RoundRecord
from fcil.reporting.loggers.base import metrics, totals

FOLDER = "tensorboard"


class TensorBoardLogger:
    """Writes a new event file with every round of the run, and removes those of earlier attempts."""

    def __init__(self) -> None:
        self._writer: Any = None
        self._last = 0

    def begin(self, config: Mapping[str, Any], folder: Path) -> None:
        for former in (folder / FOLDER).glob("events.out.tfevents.*"):
            former.unlink()
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        # A TensorBoard that is running and has read a removed file is told by this to forget it.
        self._writer = writer(str(folder / FOLDER), purge_step=0)
        self._writer.add_text("config", f"```\n{json.dumps(config, indent=2)}\n```", 0)

    def round(self, record: RoundRecord) -> None:
        self._last = record.round
        self._write(metrics(record))

    def end(self, summary: Summary) -> None:
        self._write(totals(summary))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _write(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, self._last)
        self._writer.flush()


register_logger(
    Member(
        "tensorboard",
        "event files for TensorBoard, in the run's folder",
        lambda settings: TensorBoardLogger(),
        requires="tensorboard",
        remedy="install fcil with its extra `tensorboard`, or use csv",
    )
)
