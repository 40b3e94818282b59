"""Configurations: the presets and some --set, damaged as text and as documents; read, refused by the command, begun."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from random import Random

from support.command import fcil

from fcil.core.errors import FcilError
from fcil.data.datasets.dataset import Source
from fcil.data.datasets.digits import load_digits
from fcil.experiment.config import load_config
from fcil.experiment.presets import preset_names
from fcil.experiment.run import Run
from fuzz.case import Damage, FindingError, Kind, check_sentence, read_files, write_files
from fuzz.damage import changed, damaged, toml_bytes

FILE, SETTINGS = "config.toml", "settings"
SETTING = ("scenario.memory=500", "method.name=bic", "train.milestones=[{epoch = 3, divisor = 5}]", "model.mean=[0.5]")
TINY = {
    "seed": 1,
    "scenario": {"tasks": 2, "rounds_per_task": 1, "initial_clients": 2, "joiners": 1, "participants": 2, "memory": 10},
    "model": {"width": 1, "mean": [0.5], "deviation": [0.25]},
    "train": {"epochs": 1, "batch_size": 8, "learning_rate": 0.1, "block_epochs": 10},
    "federation": {"min_participants": 1, "merge_rounds": 0},
    "run": {"engine": "serial", "threads": 1},
    "method": {"name": "glfc"},
}


@cache
def _presets() -> dict[str, bytes]:
    folder = resources.files("fcil.experiment.presets")
    return {name: folder.joinpath(f"{name}.toml").read_bytes() for name in preset_names()}


@cache
def _digits() -> Source:
    return load_digits().reduced(4)


def _draw(random: Random) -> Damage:
    presets = _presets()
    text = presets[random.choice([*presets])]
    if random.random() < 1 / 3:
        return Damage({FILE: damaged(text, random, [*presets.values()])})
    if random.random() < 1 / 4:
        setting = damaged(random.choice(SETTING).encode(), random, [each.encode() for each in SETTING])
        return Damage({FILE: text, SETTINGS: setting})
    return Damage({FILE: toml_bytes(changed(tomllib.loads(text.decode()), random))})


def _settings(damage: Damage) -> list[str]:
    given = damage.files.get(SETTINGS)
    return [] if given is None else [given.decode("utf-8", "surrogateescape")]


def _read(damage: Damage, folder: Path) -> None:
    write_files(folder, {}, damage)
    load_config(str(folder / FILE), _settings(damage))


def _refuse(damage: Damage, folder: Path) -> None:
    """Let the command line refuse what is refused; it may not begin what is not, which would take long."""
    write_files(folder, {}, damage)
    try:
        load_config(str(folder / FILE), _settings(damage))
    except FcilError:
        options = [word for setting in _settings(damage) for word in ("--set", setting)]
        check_refusal("run", folder / FILE, "--out", folder / "out", *options)
        if (folder / "out").exists():
            raise FindingError("a refused configuration left a directory behind") from None
        raise


def check_refusal(*arguments: str | Path) -> None:
    """Raise a FindingError unless a command ends with exit code 2 and one sentence."""
    ended = fcil(*arguments)
    if ended.returncode != 2 or not ended.stderr.startswith("error: ") or ended.stdout:
        raise FindingError(f"exit code {ended.returncode}, output {ended.stdout!r}, errors {ended.stderr!r}")
    check_sentence(ended.stderr.removesuffix("\n"))


def _draw_tiny(random: Random) -> Damage:
    return Damage({FILE: toml_bytes(changed(TINY, random))})


def _begin(damage: Damage, folder: Path) -> None:
    """Begin a run with what is a configuration: what this machine cannot carry has to be refused before it is tried."""
    write_files(folder, {}, damage)
    config = load_config(str(folder / FILE))
    before = read_files(folder)
    try:
        Run.start(config, folder / "out", lambda _: _digits()).close()
    except FcilError:
        if read_files(folder) != before:
            raise FindingError("a refused run left files behind") from None
        raise


KINDS = (
    Kind("config", 16, lambda: Damage({FILE: _presets()["digits"]}), _draw, _read),
    Kind("command", 3, lambda: Damage({FILE: _presets()["digits"]}), _draw, _refuse),
    Kind("start", 3, lambda: Damage({FILE: toml_bytes(TINY)}), _draw_tiny, _begin),
)
