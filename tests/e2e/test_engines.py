"""Engines from the command line: the same model, whatever happens to the processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.command import fcil

pytestmark = pytest.mark.xdist_group("engines")  # they share the serial run
RUN = [
    "--method", "icarl", "--seed", "9", "--quiet",
    "--set", "data.samples_per_class=20",
    "--set", "scenario.tasks=2",
    "--set", "scenario.rounds_per_task=3",
    "--set", "scenario.initial_clients=4",
    "--set", "scenario.participants=3",
    "--set", "model.width=2",
    "--set", "train.epochs=4",
]  # fmt: skip


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("serial") / "run"
    assert fcil("run", "digits", *RUN, "--engine", "serial", "--out", folder).returncode == 0
    return (folder / "model.safetensors").read_bytes()


def children_of(process: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True, check=False)
    return [int(number) for number in found.stdout.split()]


def wait_for_rounds(folder: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    records = folder / "records.jsonl"
    patience = time.monotonic() + 200
    while not records.is_file() or len(records.read_text().splitlines()) < count:
        assert process.poll() is None, "the run ended too early"
        assert time.monotonic() < patience
        time.sleep(0.02)


def gone(numbers: list[int]) -> bool:
    return not any(Path(f"/proc/{number}").exists() for number in numbers)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to look for orphans")
@pytest.mark.parametrize("signals", [[signal.SIGINT, signal.SIGINT], [signal.SIGKILL]], ids=["ctrl-c twice", "killed"])
def test_a_run_with_workers_that_is_stopped_leaves_no_orphan_and_resumes_to_the_serial_bits(
    expected: bytes, tmp_path: Path, signals: list[signal.Signals]
) -> None:
    folder = tmp_path / "run"
    arguments = [sys.executable, "-m", "fcil", "run", "digits", *RUN, "--engine", "processes", "--workers", "2"]
    arguments += ["--out", str(folder)]
    with subprocess.Popen(arguments, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        wait_for_rounds(folder, 2, process)
        workers = children_of(process.pid)
        assert len(workers) == 2
        for number in signals:
            os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
            time.sleep(0.05)
        code = process.wait(60)
    assert code == (130 if signals[0] == signal.SIGINT else -signal.SIGKILL)
    patience = time.monotonic() + 30
    while not gone(workers):
        assert time.monotonic() < patience, "a worker outlived the run"
        time.sleep(0.05)
    assert fcil("resume", folder, "--engine", "serial", "--quiet").returncode == 0
    assert (folder / "model.safetensors").read_bytes() == expected
