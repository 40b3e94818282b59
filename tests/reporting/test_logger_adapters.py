"""MLflow and Weights & Biases: what is called, in which order, with stand-ins; and the real ones where they are."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.records import record

from fcil.experiment.logger import LogConfig
from fcil.experiment.summary import summarise
from fcil.reporting.loggers import Log, make_logger

CONFIG = {"seed": 1, "train": {"epochs": 2}}
RECORDS = [record(number, correct=[1], total=[2], seconds=1.0) for number in range(3)]
TIMES = itertools.count()
SUMMARY = summarise(RECORDS, "glfc", "fcil", 1)


def play(name: str, folder: Path, first: int, last: int, ends: bool) -> None:
    """Log a run that knows some rounds and runs some more, and make sure that nobody complained."""
    said: list[str] = []
    with Log([name], said.append) as log:
        log.begin(CONFIG, folder, RECORDS[:first])
        for one in RECORDS[first:last]:
            log.round(one)
        if ends:
            log.end(SUMMARY)
    assert said == []


class Store:
    """A stand-in for MLflow's client that keeps what it is given, as the file behind the real one would."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.uris: set[str] = set()
        self.experiment: str | None = None
        self.run: str | None = None
        self.params: list[Any] = []
        self.metrics: list[Any] = []
        self.status = ""

    def __call__(self, tracking_uri: str) -> Store:
        self.uris.add(tracking_uri)
        return self

    def get_experiment_by_name(self, name: str) -> Any:
        return None if self.experiment is None else SimpleNamespace(experiment_id="7")

    def create_experiment(self, name: str, artifact_location: str) -> str:
        self.calls.append("create_experiment")
        self.experiment = name
        assert artifact_location.startswith("file:///")
        return "7"

    def search_runs(self, experiment_ids: list[str], max_results: int) -> list[Any]:
        return [] if self.run is None else [SimpleNamespace(info=SimpleNamespace(run_id=self.run))]

    def create_run(self, experiment_id: str, run_name: str) -> Any:
        self.calls.append("create_run")
        self.run = "a1"
        return SimpleNamespace(info=SimpleNamespace(run_id=self.run))

    def update_run(self, run_id: str, status: str) -> None:
        self.calls.append(f"update_run {status}")

    def get_metric_history(self, run_id: str, key: str) -> list[Any]:
        return [metric for metric in self.metrics if metric.key == key]

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        self.calls.append("log_batch")
        self.metrics += metrics
        self.params += params

    def set_terminated(self, run_id: str, status: str) -> None:
        self.calls.append(f"set_terminated {status}")


def test_mlflow_gets_a_store_in_the_folder_and_each_round_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, module, entities = Store(), ModuleType("mlflow"), ModuleType("mlflow.entities")
    module.MlflowClient = store  # type: ignore[attr-defined]
    entities.Param = lambda key, value: SimpleNamespace(key=key, value=value)  # type: ignore[attr-defined]
    entities.Metric = lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, step=step)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "")
    play("mlflow", tmp_path, 0, 2, ends=False)
    assert store.uris == {f"sqlite:///{tmp_path}/mlflow/mlflow.db"}
    assert [(param.key, param.value) for param in store.params] == [("seed", "1"), ("train.epochs", "2")]
    assert store.calls == [
        "create_experiment", "create_run", "log_batch", "log_batch", "log_batch", "set_terminated KILLED"
    ]  # fmt: skip

    store.calls.clear()
    play("mlflow", tmp_path, 2, 3, ends=True)
    assert store.calls == ["update_run RUNNING", "log_batch", "log_batch", "set_terminated FINISHED"]
    seconds = [(metric.step, metric.value) for metric in store.metrics if metric.key == "seconds"]
    assert seconds == [(1, 1.0), (2, 1.0), (3, 1.0)]
    assert [(metric.step, metric.value) for metric in store.metrics if metric.key == "run/last"] == [(3, 50.0)]

    store.calls.clear()
    play("mlflow", tmp_path, 3, 3, ends=True)  # a finished run, resumed
    assert store.calls == ["update_run RUNNING", "set_terminated FINISHED"]


class OfflineRun:
    """A stand-in for a run of Weights & Biases."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.folder = Path(options["dir"]) / "wandb" / f"offline-run-{next(TIMES)}-{options['id']}"
        self.folder.mkdir(parents=True)
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.summary: dict[str, float] = {}
        self.exit_code: int | None = None

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged.append((step, values))

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


def test_wandb_gets_an_offline_run_that_is_written_anew_under_the_same_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[OfflineRun] = []
    module = ModuleType("wandb")
    module.Settings = lambda **options: options  # type: ignore[attr-defined]
    module.init = lambda **options: runs.append(OfflineRun(**options)) or runs[-1]  # type: ignore[attr-defined, func-returns-value]
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "")
    (tmp_path / "wandb" / "offline-run-of-somebody-else").mkdir(parents=True)
    play("wandb", tmp_path, 0, 2, ends=False)
    play("wandb", tmp_path, 2, 3, ends=True)
    cut, whole = runs
    assert (cut.options["mode"], cut.options["dir"], cut.options["config"]) == ("offline", str(tmp_path), CONFIG)
    assert cut.options["id"] == whole.options["id"]
    assert ([number for number, _ in cut.logged], cut.exit_code) == ([1, 2], 1)
    assert ([number for number, _ in whole.logged], whole.exit_code) == ([1, 2, 3], 0)
    assert whole.summary == {"run/average": 50.0, "run/last": 50.0}
    assert (cut.folder.exists(), whole.folder.exists()) == (False, True)
    assert (tmp_path / "wandb" / "offline-run-of-somebody-else").is_dir()


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_an_adapter_is_closed_without_having_begun(name: str) -> None:
    make_logger(name, LogConfig()).close()


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
@pytest.mark.filterwarnings("default")  # of packages that are not ours
def test_the_real_package_takes_a_run_that_is_cut_and_continued(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed here, and too large to be required by the suite")
    play(name, tmp_path, 0, 2, ends=False)
    play(name, tmp_path, 2, 3, ends=True)
    {"mlflow": check_store, "wandb": check_offline_run}[name](tmp_path / name)


def check_store(folder: Path) -> None:
    client = importlib.import_module("mlflow").MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    (run,) = client.search_runs([one.experiment_id for one in client.search_experiments()])
    assert (run.info.status, run.data.params["seed"]) == ("FINISHED", str(CONFIG["seed"]))
    assert [found.step for found in client.get_metric_history(run.info.run_id, "seconds")] == [1, 2, 3]
    assert [found.step for found in client.get_metric_history(run.info.run_id, "run/last")] == [3]


def check_offline_run(folder: Path) -> None:
    (run,) = folder.glob("offline-run-*")
    (file,) = run.glob("*.wandb")
    content = file.read_bytes()
    assert content.count(b"bytes/up") % 3 == 0, "as often for each round"
    assert b"run/last" in content
