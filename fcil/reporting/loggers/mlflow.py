"""`mlflow`: a store in the folder mlflow/ of the run's, for MLflow; nothing is sent anywhere.

The store is a SQLite file: MLflow refuses its older layout of folders from version 3.13 on.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fcil.core.registry import Member
from fcil.experiment.logger import register_logger
from fcil.experiment.summary import Summary
from fcil.federation.round_record import RoundRecord
from fcil.reporting.loggers.base import EVERY_ROUND, metrics, totals
from fcil.reporting.run_facts import flat

FOLDER, STORE, EXPERIMENT = "mlflow", "mlflow.db", "fcil"
LONGEST = 250  # characters of a setting, which every version of MLflow takes
MOST = 100  # settings in one call
ENDED = "run/last"  # a figure that every finished run has


class MlflowLogger:
    """Continues the one run that the store has, or begins it; rounds that it has are not written again."""

    def __init__(self) -> None:
        self._client: Any = None
        self._run: str | None = None
        self._rounds: set[int] = set()
        self._ends: set[int] = set()  # rounds after which the run was finished
        self._last = 0
        self._finished = False

    def begin(self, config: Mapping[str, Any], folder: Path) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        place = (folder / FOLDER).absolute()
        place.mkdir(exist_ok=True)
        self._client = importlib.import_module("mlflow").MlflowClient(tracking_uri=f"sqlite:///{place / STORE}")
        known = self._client.get_experiment_by_name(EXPERIMENT)
        if known is None:
            artifacts = (place / "artifacts").as_uri()
            experiment = self._client.create_experiment(EXPERIMENT, artifact_location=artifacts)
        else:
            experiment = known.experiment_id
        runs = self._client.search_runs([experiment], max_results=1)
        if runs:
            self._continue(runs[0].info.run_id)
        else:
            self._run = self._client.create_run(experiment, run_name=folder.name).info.run_id
            self._describe(config)

    def round(self, record: RoundRecord) -> None:
        self._last = record.round
        if self._last not in self._rounds:
            self._write(metrics(record))

    def end(self, summary: Summary) -> None:
        if self._last not in self._ends:
            self._write(totals(summary))
        self._finished = True

    def close(self) -> None:
        if self._run is not None:
            self._client.set_terminated(self._run, "FINISHED" if self._finished else "KILLED")
            self._run = None

    def _continue(self, run: str) -> None:
        self._run = run
        self._client.update_run(run, status="RUNNING")
        self._rounds = {found.step for found in self._client.get_metric_history(run, EVERY_ROUND)}
        self._ends = {found.step for found in self._client.get_metric_history(run, ENDED)}

    def _describe(self, config: Mapping[str, Any]) -> None:
        kind = importlib.import_module("mlflow.entities").Param
        settings = [kind(key, str(value)[:LONGEST]) for key, value in flat(config)]
        for start in range(0, len(settings), MOST):
            self._client.log_batch(self._run, params=settings[start : start + MOST])

    def _write(self, values: Mapping[str, float]) -> None:
        kind, now = importlib.import_module("mlflow.entities").Metric, int(1000 * time.time())
        figures = [kind(name, float(value), now, self._last) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=figures)


register_logger(
    Member(
        "mlflow",
        "a store for MLflow, in the run's folder",
        lambda settings: MlflowLogger(),
        requires="mlflow",
        remedy="install the package mlflow, or use csv",
    )
)
