"""`csv`: metrics.csv in the run's folder, a line for each figure of each round."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from fcil.core.errors import FileError
from fcil.core.registry import Member
from fcil.experiment.logger import register_logger
from fcil.experiment.summary import Summary
from fcil.federation.round_record import RoundRecord
from fcil.reporting.loggers.base import metrics

FILE = "metrics.csv"
COLUMNS = ("round", "task", "metric", "value")


class CsvLogger:
    """Writes the table anew from the first round on, and adds to it as rounds finish."""

    def __init__(self) -> None:
        self._file: TextIO | None = None

    def begin(self, config: Mapping[str, Any], folder: Path) -> None:
        path = folder / FILE
        heading = ",".join(COLUMNS) + "\n"
        if path.exists():
            with path.open(encoding="utf-8", errors="replace") as file:
                if file.readline() not in ("", heading):
                    raise FileError(f"{path} is not a table of fcil's, and is left as it is")
        self._file = path.open("w", encoding="utf-8", newline="")
        self._file.write(heading)
        self._file.flush()

    def round(self, record: RoundRecord) -> None:
        assert self._file is not None
        rows = ((record.round, record.task + 1, name, value) for name, value in metrics(record).items())
        csv.writer(self._file, lineterminator="\n").writerows(rows)
        self._file.flush()

    def end(self, summary: Summary) -> None:
        """Write nothing: the table has a line for each figure of a round, and summary.json has the run's."""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


register_logger(Member("csv", "metrics.csv in the run's folder", lambda settings: CsvLogger()))
