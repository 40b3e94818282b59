"""A real kill: the command line in a child process, SIGKILL at several moments, resumed to the same bytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.command import fcil

from fcil.core.files import read_json

pytestmark = pytest.mark.xdist_group("kill")  # they share the whole run
SMALL = """
seed = 3
[data]
samples_per_class = 12
[scenario]
tasks = 3
rounds_per_task = 2
initial_clients = 3
joiners = 1
participants = 2
memory = 10
[model]
width = 2
[train]
epochs = 2
batch_size = 16
learning_rate = 0.2
milestones = []
[method]
rebuild_evaluations = 40
rebuild_restarts = 0
perturb_steps = 5
"""
ROUNDS = 6


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fcil", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def play(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run to the end what nobody kills, in this process."""
    done = fcil(*arguments)
    assert done.returncode == 0, done.stderr
    return done


def rounds_written(folder: Path) -> int:
    records = folder / "records.jsonl"
    return records.read_bytes().count(b"\n") if records.exists() else 0


def wait_for(condition, child: subprocess.Popen[str]) -> None:  # type: ignore[no-untyped-def]
    while not condition():
        assert child.poll() is None, child.communicate()
        time.sleep(0.005)


def comparable(folder: Path) -> dict[str, object]:
    return {key: value for key, value in read_json(folder / "summary.json").items() if key != "seconds"}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "small.toml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="module")
def whole(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    done = play("run", config, "--out", folder, "--quiet")
    assert done.stdout.strip() == str(folder)
    return folder


# seconds after a new record appeared: while writing, and inside the next round
@pytest.mark.parametrize("moments", [[0.0, 0.12], pytest.param([0.03, 0.01, 0.06, 0.2], marks=pytest.mark.soak)])
def test_a_run_killed_again_and_again_ends_in_the_same_bytes(
    config: Path, whole: Path, tmp_path: Path, moments: list[float]
) -> None:
    folder = tmp_path / "run"
    command = ["run", config, "--out", folder, "--quiet"]
    for number, delay in enumerate(moments):
        child = start(*command)
        seen = rounds_written(folder)
        wait_for(lambda before=seen: rounds_written(folder) > before, child)  # type: ignore[misc]
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL, f"kill {number} came too late"
        child.communicate()
        assert not (folder / "model.safetensors").exists()
        command = ["resume", folder, "--quiet"]
    play(*command)
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert comparable(folder) == comparable(whole)
    assert [json.loads(line)["round"] for line in (folder / "records.jsonl").read_text().splitlines()] == list(
        range(1, ROUNDS + 1)
    )


def test_a_run_killed_before_its_first_round_can_be_resumed(config: Path, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    child = start("run", config, "--out", folder)
    wait_for((folder / "checkpoint.fcil").exists, child)
    child.kill()
    child.communicate()
    play("resume", folder, "--quiet")
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_finishes_the_round_and_says_how_to_resume(
    config: Path, whole: Path, tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "run"
    child = start("run", config, "--out", folder)
    wait_for(lambda: rounds_written(folder) >= 1, child)
    child.send_signal(number)
    _, errors = child.communicate()
    assert child.returncode == 130
    assert f"fcil resume {folder}" in errors
    assert 1 <= rounds_written(folder) < ROUNDS
    resumed = play("resume", folder)
    assert "task 3/3" in resumed.stdout
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_another_seed_gives_another_model(config: Path, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    play("run", config, "--seed", "4", "--out", folder, "--quiet")
    assert (folder / "model.safetensors").read_bytes() != (whole / "model.safetensors").read_bytes()


def test_a_directory_in_use_is_refused(config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    child = start("run", config, "--out", folder)
    try:
        wait_for(lambda: rounds_written(folder) >= 1, child)
        os.kill(child.pid, signal.SIGSTOP)
        second = fcil("resume", folder)
        assert second.returncode == 2
        assert "in use by another process" in second.stderr
    finally:
        child.kill()
        child.communicate()
