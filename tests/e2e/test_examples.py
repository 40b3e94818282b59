"""The examples, each run as it stands; their figures are not looked at, since they are another processor's as well."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from support.plugins import fresh_registry

from fcil.experiment.config import load_config

EXAMPLES = Path(__file__).parents[2] / "examples"
Play = Callable[..., str]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Play]:
    """Run an example in an empty directory, and return what it prints; what it registers is gone afterwards."""
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    with fresh_registry():
        yield run
    plt.close("all")


def test_two_methods_are_run_and_plotted_in_about_ten_lines(play: Play, tmp_path: Path) -> None:
    play("quick.py", "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    (axes,) = plt.gcf().axes
    assert [line.get_label() for line in axes.get_lines()] == ["finetune", "icarl"]
    assert all(list(line.get_xdata()) == [2, 4, 6, 8, 10] for line in axes.get_lines())
    code = (EXAMPLES / "quick.py").read_text("utf-8").partition("import fcil\n")[2]
    assert len([line for line in code.splitlines() if line]) <= 10


def test_a_run_is_played_round_by_round_and_read_again(play: Play, tmp_path: Path) -> None:
    said = play("rounds.py", "run")
    assert "round 3: 4 classes, 6 clients" in said
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert play("rounds.py", "run") == said.splitlines(keepends=True)[-1]


def test_a_data_set_and_a_network_of_one_s_own_are_used_and_read_again(play: Play) -> None:
    said = play("own_data.py", "run")
    assert "task 2/2  round 10/10" in said
    assert re.search(r"^a ring: (disc|square|ring|cross) [01]\.\d\d$", said, re.MULTILINE)
    again = play("own_data.py", "run")
    assert "round" not in again
    assert said.endswith(again)


def test_a_method_of_one_s_own_is_compared_with_others(play: Play, tmp_path: Path) -> None:
    said = play("own_method.py", "out")
    rows = [line.split("|")[1].strip() for line in said.splitlines() if line.startswith("|")]
    assert rows == ["method", "---", "finetune", "icarl", "balanced"]
    assert (tmp_path / "out" / "curves.png").is_file()


@pytest.mark.numeric
def test_the_method_s_own_tests_pass_as_they_would_in_another_package(tmp_path: Path) -> None:
    for name in ("own_method.py", "test_own_method.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_own_method.py"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert re.search(r"^\d{2} passed in", ended.stdout, re.MULTILINE), ended.stdout + ended.stderr


def test_the_example_of_the_published_protocol_is_valid() -> None:
    config = load_config(str(EXAMPLES / "cifar100.toml"))
    assert (config.scenario.initial_clients, config.scenario.joiners, config.scenario.participants) == (30, 10, 10)
    assert (config.train.epochs, config.train.batch_size, config.train.learning_rate) == (20, 128, 2.0)
    assert config.run.evaluate == "round"
