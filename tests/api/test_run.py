"""A run in one call."""

from __future__ import annotations

import json
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from support.beasts import CONFIG, begin, samples
from support.command import fcil as command
from support.plugins import fresh_registry

import fcil
from fcil.core.errors import CheckpointError, ConfigError, DataError
from fcil.core.files import read_json
from fcil.core.registry import SCRIPT
from fcil.data.datasets import load_source
from fcil.experiment.config import load_config
from fcil.experiment.run import chosen_engine
from fcil.methods.detection import DetectionConfig
from fcil.methods.finetune import build


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
    for again in (
        fcil.run(CONFIG, data=samples(), out=tmp_path / "whole", resume=True),
        fcil.resume(tmp_path / "whole", data=samples()),
    ):
        assert again.summary == whole.summary
    begin(tmp_path / "again")
    assert fcil.resume(tmp_path / "again", data=samples(), settings=["run.evaluate=round"]).summary == {
        **whole.summary,
        "seconds": pytest.approx(whole.summary["seconds"], abs=600),
    }
    assert (tmp_path / "again" / model).read_bytes() == (whole.folder / model).read_bytes()


def test_without_the_same_data_a_run_is_not_continued(tmp_path: Path) -> None:
    begin(tmp_path / "cut")
    before = {path: path.read_bytes() for path in (tmp_path / "cut").iterdir()}
    with pytest.raises(DataError, match="pass the same data again, with resume=True"):
        fcil.run(CONFIG, out=tmp_path / "cut", resume=True)
    with pytest.raises(DataError, match=r"pass the same data again, with resume=True or to fcil\.resume"):
        fcil.resume(tmp_path / "cut")
    with pytest.raises(CheckpointError, match="the data set python is not the one the run began with"):
        fcil.resume(tmp_path / "cut", data=samples(shade=1))
    with pytest.raises(CheckpointError, match=r"begun with another configuration: seed \(3 there, 4 here\)"):
        fcil.resume(tmp_path / "cut", data=samples(), settings=["seed=4"])
    with pytest.raises(CheckpointError, match="the data set python is not the one the run began with"):
        fcil.run(CONFIG, data=samples(shade=1), out=tmp_path / "cut", resume=True)
    with pytest.raises(CheckpointError, match=r"begun with another configuration: scenario.memory \(4 there, 5 here\)"):
        fcil.run(CONFIG, data=samples(), out=tmp_path / "cut", resume=True, settings=["scenario.memory=5"])
    with pytest.raises(CheckpointError, match=r"the same call of fcil\.run, with resume=True"):
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
    for wrong in ("seed=4", [("seed", 4)], {"seed": 4}):
        with pytest.raises(ConfigError, match=r"settings: found .*, should be a list of texts"):
            fcil.run(CONFIG, data=samples(), out=tmp_path / "run", settings=wrong)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"run holds no checkpoint.fcil; it is no run's directory, or"):
        fcil.resume(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_finished_run_s_records_and_model_are_at_hand(tmp_path: Path) -> None:
    result = fcil.run(CONFIG, data=samples(), out=tmp_path / "run")
    facts = result.load_run()
    assert (facts.summary["accuracy"], facts.kind) == (result.summary["accuracy"], "simulation")
    assert [record.round for record in facts.records] == [1, 2]
    assert facts.records == fcil.load_run(tmp_path / "run").records
    assert result.load_model().class_names == fcil.load_model(tmp_path / "run").class_names


def test_a_run_that_starts_from_a_file_of_weights_is_read_again(tmp_path: Path) -> None:
    first = fcil.run(CONFIG, data=samples(), out=tmp_path / "first")
    settings = [f"model.weights={first.folder / 'model.safetensors'}"]
    second = fcil.run(CONFIG, data=samples(), out=tmp_path / "second", settings=settings)
    again = fcil.run(CONFIG, data=samples(), out=tmp_path / "second", settings=settings, resume=True)
    assert again.summary == second.summary


def test_what_a_script_defines_is_played_without_workers() -> None:
    heavy: list[Any] = ["scenario.participants=8", "train.epochs=1000", "run.workers=2"]
    source = load_source(load_config("digits").data)
    with fresh_registry():
        scripted = FunctionType(build.__code__, build.__globals__)
        scripted.__module__ = SCRIPT
        fcil.register_method(fcil.Method("scripted", "a method of a script", DetectionConfig, scripted))
        engines = [
            chosen_engine(load_config("digits", [*heavy, *more]), source)
            for more in (["method.name=finetune"], ["method.name=scripted"])
        ]
    assert engines == ["processes", "serial"]
