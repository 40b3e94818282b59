"""A run on a user's own images, from the command line to the names in the final model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.console import Console
from support.trees import CLASSES, paint, write_tree

from fcil.cli.app import main
from fcil.experiment.model_file import load_model
from fcil.reporting.terminal.progress import Decoding

CONFIG = """
[data]
source = "imagefolder"
path = "{path}"
image_size = 8
test_fraction = 0.25
broken = "skip"

[scenario]
tasks = [2, 1]
rounds_per_task = 1
initial_clients = 2
participants = 1
joiners = 0

[model]
width = 2

[train]
epochs = 1

[method]
name = "finetune"
"""


def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str | Path
) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["fcil", *map(str, arguments), "--engine", "serial"])
    code = 0
    try:
        main()
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    return code, capsys.readouterr().err


def test_a_run_on_own_images_shows_decoding_and_keeps_the_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    photos = write_tree(tmp_path / "photos", 8)
    torn = photos / "bee" / "torn.png"
    torn.write_bytes(b"torn")
    (tmp_path / "own.toml").write_text(CONFIG.format(path=photos))
    code, err = call(monkeypatch, capsys, "run", tmp_path / "own.toml", "--out", tmp_path / "first")
    assert code == 0
    assert "decoding imagefolder: 25 of 25 images\n" in err
    assert f"warning: 1 broken image left out: {torn}\n" in err
    predictor = load_model(tmp_path / "first" / "model.safetensors")
    assert sorted(predictor.class_names) == sorted(CLASSES)
    code, err = call(monkeypatch, capsys, "run", tmp_path / "own.toml", "--out", tmp_path / "second")
    assert code == 0
    assert "decoding" not in err
    models = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("first", "second")]
    assert models[0] == models[1]
    paint(photos / "ant" / "000.png", 5)
    code, err = call(monkeypatch, capsys, "run", tmp_path / "own.toml", "--out", tmp_path / "third", "--quiet")
    assert code == 0
    assert "decoding" not in err


def test_a_terminal_gets_a_bar(tmp_path: Path) -> None:
    with (tmp_path / "screen").open("w") as file:
        console = Console(file=file, force_terminal=True, width=100)
        with Decoding(console, "tinyimagenet", quiet=False) as decoding:
            for done in range(1, 6):
                decoding.show(done, 5)
    screen = (tmp_path / "screen").read_text()
    assert "decoding tinyimagenet" in screen
    assert "5/5" in screen


def test_nothing_decoded_shows_nothing(tmp_path: Path) -> None:
    with (tmp_path / "screen").open("w") as file, Decoding(Console(file=file), "digits", quiet=False):
        pass
    assert (tmp_path / "screen").read_text() == ""
