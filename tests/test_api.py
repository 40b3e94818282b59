"""A run in one call."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command import fcil as command

import fcil
from fcil.config import parse_config
from fcil.data.given import given_source
from fcil.errors import CheckpointError, ConfigError, DataError
from fcil.experiment import Run
from fcil.files import read_json

CONFIG: dict[str, Any] = {
    "seed": 3,
    "data": {"test_fraction": 0.25},
    "scenario": {"tasks": 2, "rounds_per_task": 1, "initial_clients": 2, "joiners": 0, "participants": 2, "memory": 4},
    "model": {"width": 1},
    "train": {"epochs": 1, "batch_size": 8, "learning_rate": 0.1},
    "run": {"engine": "serial"},
    "method": {"name": "icarl"},
}


def samples(shade: int = 0) -> list[tuple[np.ndarray, str]]:
    draw = np.random.default_rng(1)
    return [
        (draw.integers(0, 60, (8, 8), dtype=np.uint8) + np.uint8(40 * place + shade), name)
        for place, name in enumerate(["ant", "bee", "cow", "dog"])
        for _ in range(8)
    ]


def begin(folder: Path) -> None:
    """Play the first of two rounds and stop."""
    config = parse_config({**CONFIG, "data": {**CONFIG["data"], "source": "python"}})
    with Run.start(config, folder, lambda data: given_source(samples(), data)) as run:
        next(run.rounds())


def test_importing_the_package_imports_nothing_slow() -> None:
    code = "import sys, fcil; assert fcil.__version__; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    with pytest.raises(AttributeError, match="has no attribute 'ruin'"):
        fcil.ruin  # noqa: B018


def test_a_run_on_data_from_python_ends_with_figures_and_a_model(tmp_path: Path) -> None:
    result = fcil.run(CONFIG, data=samples(), out=tmp_path / "run", method="finetune", settings=["seed=9"])
    assert (result.summary["method"], result.summary["seed"]) == ("finetune", 9)
    assert len(result.summary["accuracy"]) == 2
    predictor = result.load_model()
    assert predictor.class_names == ("ant", "bee", "cow", "dog")
    assert predictor.predict(samples()[0][0])[0].name in predictor.class_names
    document = read_json(tmp_path / "run" / "config.json")
    assert (document["data"]["source"], document["data"]["path"]) == ("python", None)


def test_a_run_that_was_cut_is_continued_with_the_same_data_to_the_same_bits(tmp_path: Path) -> None:
    begin(tmp_path / "cut")
    resumed = fcil.run(CONFIG, data=samples(), out=tmp_path / "cut", resume=True)
    whole = fcil.run(CONFIG, data=samples(), out=tmp_path / "whole", resume=True)  # nothing to continue: it begins
    model = "model.safetensors"
    assert (resumed.folder / model).read_bytes() == (whole.folder / model).read_bytes()
    again = fcil.run(CONFIG, data=samples(), out=tmp_path / "whole", resume=True)
    assert again.summary == whole.summary


def test_without_the_same_data_a_run_is_not_continued(tmp_path: Path) -> None:
    begin(tmp_path / "cut")
    before = {path: path.read_bytes() for path in (tmp_path / "cut").iterdir()}
    with pytest.raises(DataError, match="pass the same data again, with resume=True"):
        fcil.run(CONFIG, out=tmp_path / "cut", resume=True)
    with pytest.raises(CheckpointError, match="the data set python is not the one the run began with"):
        fcil.run(CONFIG, data=samples(shade=1), out=tmp_path / "cut", resume=True)
    with pytest.raises(CheckpointError, match=r"begun with another configuration: scenario.memory \(4 there, 5 here\)"):
        fcil.run(CONFIG, data=samples(), out=tmp_path / "cut", resume=True, settings=["scenario.memory=5"])
    with pytest.raises(CheckpointError, match="fcil resume"):
        fcil.run(CONFIG, data=samples(), out=tmp_path / "cut")
    ended = command("resume", tmp_path / "cut")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "pass the same data again" in ended.stderr
    assert {path: path.read_bytes() for path in (tmp_path / "cut").iterdir()} == before


def test_the_program_s_data_takes_the_place_of_the_configured_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = json.dumps({**CONFIG["scenario"]}).replace(":", " =")
    lines = ["seed = 3", f"scenario = {text}".replace('"', ""), "model = { width = 1 }"]
    data = 'data = { source = "imagefolder", path = "nowhere", image_size = 8, test_fraction = 0.25 }'
    (tmp_path / "mine.toml").write_text("\n".join([*lines, data, "train = { epochs = 1, learning_rate = 0.1 }"]))
    result = fcil.run("mine.toml", data=samples(), method="finetune", progress=True)
    assert result.folder == Path("runs/mine-finetune-3")
    assert "task 2/2  round 2/2" in capsys.readouterr().out


def test_a_mistake_is_a_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"method\.name: 'icral' is unknown"):
        fcil.run(CONFIG, data=samples(), method="icral", out=tmp_path / "run")
    with pytest.raises(DataError, match="data: found a int"):
        fcil.run(CONFIG, data=7, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="data: found 3"):
        fcil.run({**CONFIG, "data": 3}, data=samples(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
