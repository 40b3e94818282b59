"""Figures of a run for other programs: right, once, and without a trace in the run itself."""

from __future__ import annotations

import csv
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.command import fcil
from support.records import record
from support.tiny import TINY

from fcil.experiment.config import load_config
from fcil.experiment.journal import Journal
from fcil.experiment.run import Run
from fcil.experiment.summary import summarise
from fcil.federation.round_record import RoundRecord
from fcil.reporting import loggers
from fcil.reporting.compare import runner as grids
from fcil.reporting.compare.cells import cases_of_methods
from fcil.reporting.compare.runner import Grid
from fcil.reporting.loggers import LOGGERS, Log, check_loggers
from fcil.reporting.loggers.base import EVERY_ROUND, metrics, totals
from fcil.reporting.loggers.table import CsvLogger
from fcil.reporting.loggers.tensorboard import TensorBoardLogger

FLAGS = [part for setting in TINY for part in ("--set", setting)]
RECORD = record(
    3, 1, correct=[1, 3], total=[2, 8], loss=0.5, entropy=None, proxy={"score": 0.25}, bytes_up=7, seconds=2.0
)


def records(folder: Path) -> list[RoundRecord]:
    journal = Journal(folder, [line + b"\n" for line in (folder / "records.jsonl").read_bytes().splitlines()])
    return journal.records


def table(folder: Path) -> list[tuple[int, str, float]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return [(int(row["round"]), row["metric"], float(row["value"])) for row in csv.DictReader(file)]


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the scalars as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def expected(played: Sequence[RoundRecord]) -> list[tuple[int, str, float]]:
    return [(one.round, name, value) for one in played for name, value in metrics(one).items()]


def check_logs(folder: Path) -> None:
    """Both logs have each round of the journal once."""
    wanted = expected(records(folder))
    assert table(folder) == wanted
    read = [(number, tag, value) for tag, values in events(folder).items() for number, value in values]
    assert sorted(entry for entry in read if not entry[1].startswith("run/")) == [
        (number, name, pytest.approx(value, rel=1e-6)) for number, name, value in sorted(wanted)
    ]


def test_the_figures_of_a_round_by_hand() -> None:
    assert metrics(RECORD) == {
        "classes": 4,
        "accuracy/all": 40.0,
        "accuracy/task_1": 50.0,
        "accuracy/task_2": 37.5,
        "loss": 0.5,
        "proxy/score": 0.25,
        "bytes/up": 7,
        "bytes/down": 0,
        "seconds": 2.0,
    }
    assert list(metrics(record(0)))[-1] == EVERY_ROUND
    summary = summarise([record(0, correct=[1], total=[2])], "glfc", "fcil", 1)
    assert totals(summary) == {"run/average": 50.0, "run/last": 50.0}


def test_a_logged_run_has_the_bits_of_one_that_is_not_and_its_logs_the_figures(tmp_path: Path) -> None:
    logged = [*FLAGS, "--log", "csv", "--log", "tensorboard", "--log", "csv"]
    for name, options in (("plain", FLAGS), ("logged", logged)):
        done = fcil("run", "digits", *options, "--out", tmp_path / name, "--quiet")
        assert done.returncode == 0, done.stderr
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "logged")]
    assert models[0] == models[1]
    plain, beside = ([{**vars(one), "seconds": 0} for one in records(tmp_path / name)] for name in ("plain", "logged"))
    assert plain == beside
    assert not (tmp_path / "plain" / "metrics.csv").exists()
    check_logs(tmp_path / "logged")
    summary = json.loads((tmp_path / "logged" / "summary.json").read_text())
    assert events(tmp_path / "logged")["run/average"] == [(4, pytest.approx(summary["average"]))]

    again = fcil("resume", tmp_path / "logged", "--log", "csv", "--log", "tensorboard", "--quiet")
    assert again.returncode == 0, again.stderr
    check_logs(tmp_path / "logged")
    assert len(list((tmp_path / "logged" / "tensorboard").iterdir())) == 1


def test_a_resumed_run_continues_its_logs_without_a_round_twice(tmp_path: Path) -> None:
    with (
        Run.start(load_config("digits", list(TINY)), tmp_path / "run") as run,
        Log(["csv", "tensorboard"], print) as log,
    ):
        log.begin(run.config.document(), run.folder, [])
        rounds = run.rounds()
        for _ in range(2):
            log.round(next(rounds))
        log.round(record(2, 1, seconds=99.0))  # which a kill took from the journal
    done = fcil("resume", tmp_path / "run", "--log", "csv", "--log", "tensorboard", "--quiet")
    assert done.returncode == 0, done.stderr
    assert [one.round for one in records(tmp_path / "run")] == [1, 2, 3, 4]
    check_logs(tmp_path / "run")


class Careless:
    """A logger that draws from every global generator, and fails in the second round."""

    told: int

    def __init__(self) -> None:
        self.told = 0
        self.closed = False

    def begin(self, config: Mapping[str, Any], folder: Path) -> None:
        self.round(RECORD)
        self.told = 0

    def round(self, record: RoundRecord) -> None:
        random.random()
        np.random.random()
        torch.rand(1)
        self.told += 1
        if self.told == 2:
            raise RuntimeError("no\nroom")

    def end(self, summary: Any) -> None:
        raise AssertionError("it was left out")

    def close(self) -> None:
        self.closed = True
        raise OSError("it cannot even be closed")


def test_a_logger_that_fails_is_left_out_with_one_warning_and_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    careless = Careless()
    monkeypatch.setattr(loggers, "make_logger", lambda name, _: careless if name == "wandb" else CsvLogger())
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
    said: list[str] = []
    with Log(["wandb", "csv"], said.append) as log:
        log.begin({}, tmp_path, [])
        for number in range(3):
            log.round(record(number))
        log.end(summarise([], "glfc", "fcil", 1))
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
    assert before == after
    assert said == ["--log wandb is left out from here on: RuntimeError: no room"]
    assert careless.closed
    assert table(tmp_path) == expected([record(number) for number in range(3)])


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SystemExit("no licence"), "SystemExit: no licence"),
        (FileExistsError(17, "File exists", "runs/x/wandb"), "FileExistsError: runs/x/wandb: File exists"),
    ],
)
def test_a_package_that_wants_to_end_the_program_does_not_and_a_file_is_named(
    error: BaseException, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    careless = SimpleNamespace(begin=fail, close=fail)
    monkeypatch.setattr(loggers, "make_logger", lambda *_: careless)
    said: list[str] = []
    with Log(["wandb"], said.append) as log:
        log.begin({}, tmp_path, [])
        log.round(record(0))
    assert said == [f"--log wandb is left out from here on: {words}"]


def test_a_table_that_is_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("mine\n1\n")
    said: list[str] = []
    with Log(["csv"], said.append) as log:
        log.begin({}, tmp_path, [record(0)])
    assert (tmp_path / "metrics.csv").read_text() == "mine\n1\n"
    reason = f"{tmp_path}/metrics.csv is not a table of fcil's, and is left as it is"
    assert said == [f"--log csv is left out from here on: {reason}"]


def test_tensorboard_is_closed_without_having_begun() -> None:
    TensorBoardLogger().close()
    CsvLogger().close()


@pytest.mark.parametrize(
    "command",
    [
        ["run", "digits"],
        ["resume", "nowhere"],
        ["compare", "digits", "--methods", "finetune"],
        ["compare", "digits", "--sweep", "scenario.memory=1"],
        ["federation", "serve", "digits", "--address", "127.0.0.1:1", "--out", "run", "--insecure"],
    ],
    ids=["run", "resume", "compare", "sweep", "serve"],
)
def test_a_name_without_a_logger_is_refused_at_the_start(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fcil.core.registry.is_installed", lambda module: False)
    for name, said in (
        ("tensorbord", f"--log tensorbord: it is unknown; it should be {LOGGERS.one_of('tensorbord')}"),
        (
            "tensorboard",
            "--log tensorboard: tensorboard is not installed; install fcil with its extra `tensorboard`, or use csv",
        ),
        ("wandb", "--log wandb: wandb is not installed; install the package wandb, or use csv"),
    ):
        done = fcil(*command, "--log", "csv", "--log", name)
        assert (done.returncode, done.stderr) == (2, f"error: {said}\n")
    assert list(tmp_path.iterdir()) == []


def test_what_is_installed_is_accepted() -> None:
    check_loggers(["csv", "tensorboard"])


def test_a_comparison_passes_its_loggers_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(grids, "start_child", lambda command, output: commands.append(command))
    grid = Grid("digits", cases_of_methods(["finetune"]), [1], tmp_path, log=["csv", "wandb"])
    run = grid._planned(grid.cases[0], 1)
    grid._start(run, alone=True)
    run.folder.mkdir()
    (run.folder / "checkpoint.fcil").touch()
    grid._start(run, alone=True)
    assert [command[0] for command in commands] == ["run", "resume"]
    assert all(command[-4:] == ["--log", "csv", "--log", "wandb"] for command in commands)


def test_the_rounds_of_a_server_are_logged_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from support.served import idle, served

    from fcil.cli.federation.operation import server_events
    from fcil.cli.federation.parties import _train

    with served(tmp_path / "run", 3) as run, Log(["csv"], print) as log:
        log.begin({}, run.folder, run.journal.records)
        events = server_events(run.folder, "plain")
        _train(run, _finite(idle(), 3), log, events, quiet=True)
        events.close()
    assert table(tmp_path / "run") == expected(records(tmp_path / "run"))
    assert len(records(tmp_path / "run")) == 3


def _finite(server: Any, rounds: int) -> Any:
    endless = server.rounds
    server.rounds = lambda state, measured: itertools.islice(endless(state, measured), rounds)
    return server
