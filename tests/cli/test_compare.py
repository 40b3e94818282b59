"""`fcil compare` as a user runs them, on two tasks of the digits."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support.command import fcil
from typer.testing import CliRunner

from fcil.cli.app import app
from fcil.cli.compare import alike
from fcil.core.errors import CheckpointError, ConfigError
from fcil.core.files import write_json
from fcil.experiment.result_file import read_kept, write_kept
from fcil.reporting.compare.cells import Case, cases_of_methods, cases_of_sweep, split_values
from fcil.reporting.compare.output import write_comparison
from fcil.reporting.compare.runner import Grid

TINY = [
    "scenario.tasks=[2, 2]",
    "scenario.rounds_per_task=1",
    "scenario.initial_clients=2",
    "scenario.participants=2",
    "data.samples_per_class=20",
    "model.width=2",
    "train.epochs=1",
]


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    settings = [part for setting in TINY for part in ("--set", setting)]
    return fcil(arguments[0], arguments[1], *settings, *arguments[2:])  # the runs are processes all the same


def test_missing_runs_are_made_finished_ones_skipped_and_a_failure_loses_nothing(tmp_path: Path) -> None:
    out, keep = tmp_path / "out", tmp_path / "keep"
    arguments = ["compare", "digits", "--seeds", "1,2", "--out", str(out), "--results", str(keep), "--jobs", "2"]
    first = call(*arguments, "--methods", "finetune")
    assert first.returncode == 0, first.stderr
    assert "2 runs, 0 finished before" in first.stdout
    files = ("table.md", "table.tex", "table.csv", "curves.png", "curves.svg")
    assert all((out / name).stat().st_size > 0 for name in files)
    assert sorted(path.name for path in keep.iterdir()) == ["finetune-1.json", "finetune-2.json"]
    kept = json.loads((keep / "finetune-1.json").read_text())
    assert kept["config"]["method"]["name"] == "finetune"
    assert kept["summary"]["classes_seen"] == [2, 4]
    before = (out / "finetune-1" / "summary.json").stat().st_mtime_ns

    (out / "joint-1").mkdir()
    (out / "joint-1" / "checkpoint.fcil").write_bytes(b"not a checkpoint")
    second = call(*arguments, "--methods", "finetune,joint")
    assert second.returncode == 1
    assert "4 runs, 2 finished before" in second.stdout
    assert "joint-1 failed" in second.stderr
    assert (out / "finetune-1" / "summary.json").stat().st_mtime_ns == before
    table = (out / "table.md").read_text()
    assert all(name in table for name in ("finetune", "joint"))  # of joint the other seed

    fewer = call(*arguments, "--methods", "finetune")
    assert fewer.stdout.splitlines()[-1] == f"note: {out} also holds joint-2; not in these tables"

    printed = call(*arguments, "--methods", "finetune", "--json")
    document = json.loads(printed.stdout)  # and nothing beside it
    assert "also holds joint-2" in printed.stderr
    assert set(document) == {"title", "folder", "rows", "ours"}
    assert [row["label"] for row in document["rows"]] == ["finetune"]
    assert {"seeds", "classes", "accuracy", "average", "forgetting", "p_value"} <= set(document["rows"][0])

    third = call("compare", "digits", "--seeds", "1", "--out", str(tmp_path / "elsewhere"), "--results", str(keep),
                 "--methods", "finetune")  # fmt: skip
    assert third.returncode == 0, third.stderr
    assert "1 runs, 1 finished before" in third.stdout  # what was kept is enough

    other = call(*arguments, "--methods", "finetune", "--set", "scenario.memory=7")
    assert other.returncode == 2
    assert "scenario.memory (60 there, 7 here)" in other.stderr


def test_what_was_kept_is_never_taken_for_a_run_with_other_settings(tmp_path: Path) -> None:
    arguments = ["compare", "digits", "--methods", "finetune", "--seeds", "1", "--out", str(tmp_path / "out")]
    kept = tmp_path / "kept" / "finetune-1.json"
    first = call(*arguments, "--set", "run.threads=2")
    assert first.returncode == 0, first.stderr
    assert call(*arguments, "--results", str(kept.parent)).returncode == 0
    found = read_kept(kept)
    assert (found.config["run"]["threads"], found.machine["threads"]) == (2, "2")  # as it was run

    write_kept(kept, {**found.config, "scenario": {**found.config["scenario"], "memory": 7}}, found.summary, {})
    before = kept.read_bytes()
    refused = call(*arguments, "--results", str(kept.parent))
    assert refused.returncode == 2
    assert f"{kept} holds a run with other settings: scenario.memory (7 there, 60 here)" in refused.stderr
    assert kept.read_bytes() == before


def test_a_sweep_has_a_row_for_each_value(tmp_path: Path) -> None:
    done = call("compare", "digits", "--sweep", "scenario.memory=0,8", "--methods", "icarl", "--seeds", "1",
                "--out", str(tmp_path))  # fmt: skip
    assert done.returncode == 0, done.stderr
    configs = [json.loads((tmp_path / f"memory={value}-1" / "config.json").read_text()) for value in (0, 8)]
    assert [config["scenario"]["memory"] for config in configs] == [0, 8]
    assert "memory=8" in (tmp_path / "table.md").read_text()


def test_a_sweep_over_what_has_no_effect_says_so(tmp_path: Path) -> None:
    done = call("compare", "digits", "--sweep", "scenario.memory=0,8", "--methods", "lwf", "--seeds", "1",
                "--out", str(tmp_path))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.splitlines()[-1]
        == "note: memory=0, memory=8: all accuracies are the same; it may have no effect here"
    )


def test_rows_are_alike_if_their_runs_are_with_every_seed() -> None:
    def run(method: str, *accuracy: float) -> dict[str, Any]:
        return {"method": method, "accuracy_matrix": [list(accuracy)], "seconds": random.random()}

    rows = {
        "a": {1: run("glfc", 50.0), 2: run("glfc", 60.0)},
        "b": {2: run("glfc", 60.0), 1: run("glfc", 50.0)},
        "other in one seed": {1: run("glfc", 50.0), 2: run("glfc", 61.0)},
        "another method": {1: run("icarl", 50.0), 2: run("icarl", 60.0)},
        "failed": {},
        "failed too": {},
    }
    assert alike(rows) == [["a", "b"]]  # type: ignore[arg-type]


def running(out: Path) -> list[str]:
    """Return the command lines of all processes that name a directory."""
    lines = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            lines.append(process.read_bytes().decode(errors="replace"))
    return [line for line in lines if str(out) in line]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are counted in /proc")
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_comparison_is_continued(tmp_path: Path, kind: signal.Signals) -> None:
    settings = [part for setting in [*TINY, "scenario.rounds_per_task=12"] for part in ("--set", setting)]
    command = ["compare", "digits", "--methods", "finetune", "--seeds", "1", "--out", str(tmp_path), *settings]
    started = subprocess.Popen(
        [sys.executable, "-m", "fcil", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    records = tmp_path / "finetune-1" / "records.jsonl"
    deadline = time.monotonic() + 120
    while not (records.is_file() and records.read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(started.pid, kind)
    output, _ = started.communicate(timeout=120)
    if kind == signal.SIGKILL:
        assert started.returncode == -kind
    else:
        assert started.returncode == 130, output
        assert output.splitlines()[-1] == "interrupted with 0 of 1 runs finished; the same command continues"
        assert not running(tmp_path)
    while running(tmp_path):
        assert time.monotonic() < deadline, "a run outlived its comparison"
        time.sleep(0.05)
    assert not (tmp_path / "finetune-1" / "summary.json").exists()
    done = fcil(*command)
    assert done.returncode == 0, done.stderr
    assert len(records.read_text().splitlines()) == 24


@pytest.mark.parametrize("over", ["scenario.memory", "=1,2", "scenario.memory="])
def test_a_sweep_over_nothing_is_refused(over: str) -> None:
    with pytest.raises(ConfigError, match=r"key\.path=value,value"):
        cases_of_sweep(over, [])


def test_labels_of_a_sweep_name_the_method_only_where_there_are_several() -> None:
    assert [case.label for case in cases_of_sweep("scenario.memory=1,2", ["glfc"])] == ["memory=1", "memory=2"]
    assert [case.label for case in cases_of_sweep("scenario.memory=1", ["a", "b"])] == ["a memory=1", "b memory=1"]
    assert cases_of_sweep("train.epochs=1", [])[0].settings == ("train.epochs=1",)


def test_values_may_be_lists() -> None:
    assert split_values("[2, 2],3") == ["[2, 2]", "3"]
    assert Case("glfc tasks=[2, 2]", ()).name == "glfc-tasks=-2-2"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "--methods", ""], "--methods is empty"),
        (["compare", "--methods", "finetune", "--seeds", ","], "--seeds ,: write whole numbers"),
        (["compare", "--methods", "finetune", "--ours", "glcf"], "--ours glcf: it should be one of the methods"),
        (["compare", "--methods", "finetune", "--set", "seed=7"], "setting seed=7: methods and seeds are given by"),
        (
            ["compare", "--methods", "finetune", "--results", "afile/x"],
            "afile/x: afile is a file, should be",
        ),
        (["compare", "--sweep", "seed=5,6"], "setting seed=5,6: methods and seeds are given by"),
        (["compare", "--sweep", "run.engine=serial"], "where it runs does not change its figures"),
    ],
)
def test_bad_arguments_get_a_sentence_and_nothing_runs(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "afile").write_text("in the way")
    done = CliRunner().invoke(app, [arguments[0], "digits", *arguments[1:]])
    text = done.stderr if done.exit_code else done.stdout
    assert isinstance(done.exception, ConfigError) or done.exit_code == 2, text
    assert said in f"{done.exception} {text}"
    assert [path.name for path in tmp_path.iterdir()] == ["afile"]


def test_a_directory_with_other_settings_is_refused_before_anything_runs(tmp_path: Path) -> None:
    for name, content in (("finetune-1", {"seed": 1}), ("kept", {"seed": 1})):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "config.json", content)
    grid = Grid("digits", cases_of_methods(["finetune", "joint"]), [1], tmp_path)
    with pytest.raises(CheckpointError, match=r"finetune-1 holds a run with other settings: .*name another directory"):
        grid.run(1, print)
    assert not (tmp_path / "logs").exists()
    (tmp_path / "finetune-1" / "config.json").rename(tmp_path / "finetune-1" / "summary.json")
    with pytest.raises(CheckpointError, match=r"config.json is missing; remove .*finetune-1 to run again"):
        grid.run(1, print)
    kept = tmp_path / "kept" / "finetune-2.json"
    grid = Grid("digits", cases_of_methods(["finetune"]), [2], tmp_path / "new", keep=tmp_path / "kept")
    kept.write_text("{}")
    with pytest.raises(CheckpointError, match=r"finetune-2.json is damaged: it has no digest; remove .* to run again"):
        grid.run(1, print)
    write_json(kept, {"config": {}})
    with pytest.raises(CheckpointError, match=r"finetune-2.json is not a kept result"):
        grid.run(1, print)


def test_what_only_a_run_can_see_is_said_and_ends_with_two(tmp_path: Path) -> None:
    settings = ["--set", "scenario.tasks=50"]
    done = call("compare", "digits", "--methods", "finetune", "--seeds", "1", "--out", str(tmp_path / "out"), *settings)
    assert done.returncode == 2, done.stderr
    assert "put right what it says" in done.stderr
    assert "scenario.tasks" in done.stdout
    assert not (tmp_path / "out" / "table.md").exists()


def test_failures_of_clients_are_named_below_the_table(tmp_path: Path) -> None:
    sound = {"accuracy": [50.0], "average": 50.0, "forgetting": 0.0, "classes_seen": [2], "failures": []}
    lossy = {**sound, "failures": [{"client": 3, "round": 0, "stage": "fit", "reason": "RuntimeError: no room"}]}
    write_comparison({"glfc": {1: sound}, "ewc": {1: lossy}}, "title", tmp_path, None)
    page = (tmp_path / "table.md").read_text()
    assert "ewc, seed 1: 1 failures of clients, the first: RuntimeError: no room" in page
    assert "glfc, seed 1" not in page


def test_a_run_that_is_continued_takes_the_settings_of_the_machine_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [*TINY, "run.engine=serial", " run.threads = 1"]
    grid = Grid("digits", cases_of_methods(["finetune"]), [1], tmp_path, settings)
    (run,), _ = grid.prepare()
    run.folder.mkdir()
    (run.folder / "checkpoint.fcil").touch()
    given: list[list[str]] = []
    monkeypatch.setattr("fcil.reporting.compare.runner.start_child", lambda command, log: given.append(command))
    grid._start(run, alone=False)
    assert given == [["resume", str(run.folder), "--set", "run.engine=serial", "--set", " run.threads = 1"]]


def test_what_could_not_be_written_later_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "out" / "table.md").mkdir(parents=True)
    grid = Grid("digits", cases_of_methods(["finetune"]), [1], tmp_path / "out", keep=tmp_path / "kept")
    with pytest.raises(ConfigError, match=r"/out: table.md in it is a directory, should be a file"):
        grid.run(1, print)
    assert not (tmp_path / "kept").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_device_that_is_not_there_is_refused_before_anything_runs(tmp_path: Path) -> None:
    grid = Grid("digits", cases_of_methods(["finetune"]), [1], tmp_path / "out", ["run.device=cuda"])
    with pytest.raises(ConfigError, match=r"run.device: there is no cuda here"):
        grid.run(1, print)
    assert not (tmp_path / "out").exists()
