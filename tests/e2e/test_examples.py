from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from fcil.config import load_config

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_example_of_the_python_interface_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["python_api.py", str(tmp_path / "run")])
    runpy.run_path(str(EXAMPLES / "python_api.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "round 3: 4 classes, 6 clients" in said
    assert "predicted [" in said
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_the_example_of_the_published_protocol_is_valid() -> None:
    config = load_config(str(EXAMPLES / "cifar100.toml"))
    assert (config.scenario.initial_clients, config.scenario.joiners, config.scenario.participants) == (30, 10, 10)
    assert (config.train.epochs, config.train.batch_size, config.train.learning_rate) == (20, 128, 2.0)
    assert config.run.evaluate == "round"


def test_the_example_of_data_from_python_runs_and_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["own_data.py", str(tmp_path / "run")])
    runpy.run_path(str(EXAMPLES / "own_data.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "task 2/2  round 10/10" in said
    assert "a ring: " in said
    runpy.run_path(str(EXAMPLES / "own_data.py"), run_name="__main__")
    again = capsys.readouterr().out
    assert "round" not in again
    assert said.endswith(again)
