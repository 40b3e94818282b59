"""A logger: one line of JSON for each round."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from fcil.core.registry import Member
from fcil.core.settings_table import SettingsTable
from fcil.experiment.logger import register_logger
from fcil.experiment.summary import Summary
from fcil.federation.round_record import RoundRecord
from fcil.reporting.loggers.base import metrics


class JsonlSettings(SettingsTable):
    """The table `[log.jsonl]`."""

    file: str = Field("figures.jsonl", description="name of the file in the run's folder")


class JsonlLogger:
    """Writes the file anew when a run begins or is resumed: every round so far is given again."""

    def __init__(self, settings: JsonlSettings) -> None:
        self.path = Path(settings.file)

    def begin(self, config: Mapping[str, Any], folder: Path) -> None:
        self.path = folder / self.path
        self.path.write_text("", "utf-8")

    def round(self, record: RoundRecord) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"round": record.round, **metrics(record)}) + "\n")

    def end(self, summary: Summary) -> None:
        """Write nothing: summary.json has the figures of the run."""

    def close(self) -> None:
        """Nothing stays open."""


register_logger(Member("jsonl", "figures.jsonl in the run's folder", JsonlLogger, JsonlSettings))
