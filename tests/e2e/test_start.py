"""The page for newcomers, followed step by step on a tiny version of its experiment."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from fcil.cli.app import main
from fcil.experiment.config import load_config
from fcil.experiment.model_file import Prediction

PAGE = (Path(__file__).parents[2] / "docs" / "start.md").read_text("utf-8")
TINY = [
    "scenario.rounds_per_task=1",
    "scenario.participants=1",
    "train.epochs=1",
    "model.width=2",
    "data.samples_per_class=4",
]
EXTRA = {
    "plan": ["--seconds", "0.1", *(part for setting in TINY for part in ("--set", setting))],
    "run": ["--quiet", "--engine", "serial", *(part for setting in TINY for part in ("--set", setting))],
    "resume": ["--quiet", "--engine", "serial"],
    "show": [],
    "predict": [],
    "evaluate": [],
}


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_leads_from_photos_to_a_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make_photos, *use = blocks("python")
    namespace: dict[str, Any] = {}
    exec(make_photos, namespace)
    assert len(list(tmp_path.glob("photos/*/*.png"))) == 1000
    (tmp_path / "photos.toml").write_text(*blocks("toml"))
    said = {}
    for command in re.findall(r"^\$ (fcil .*)$", PAGE, re.MULTILINE):
        _, name, *arguments = shlex.split(command)
        monkeypatch.setattr(sys, "argv", ["fcil", name, *arguments, *EXTRA[name]])
        with pytest.raises(SystemExit) as leaving:
            main()
        assert not leaving.value.code
        said[name] = capsys.readouterr().out
    assert list(said) == ["plan", "run", "resume", "show", "predict", "evaluate"]
    assert re.search(r"clients at the end +7", said["plan"])
    assert said["show"].startswith("mosaic (edition fcil, seed 1, imagefolder): accuracy (%) over all classes seen")
    assert re.match(r"file .*\nphoto\.jpg .*\n$", said["predict"])
    assert re.search(r"\(\d+ of 400 images\)", said["evaluate"])
    for snippet in use:
        exec(snippet, namespace)
    assert isinstance(namespace["prediction"], Prediction)
    printed = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"({'|'.join(namespace['NAMES'])}) [01]\.\d\d", printed[0])
    assert [line.split()[0] for line in printed[1:]] == namespace["paths"]


def test_the_figures_on_the_page_are_those_of_its_experiment(tmp_path: Path) -> None:
    (tmp_path / "photos.toml").write_text(*blocks("toml"))
    scenario = load_config(str(tmp_path / "photos.toml")).scenario
    assert isinstance(scenario.tasks, tuple)
    rounds = len(scenario.tasks) * scenario.rounds_per_task
    clients = scenario.initial_clients + (len(scenario.tasks) - 1) * scenario.joiners
    assert sum(scenario.tasks) == 10
    assert f"round {rounds}/{rounds}  {scenario.participants} of {clients} clients" in PAGE
