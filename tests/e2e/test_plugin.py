"""examples/plugin, a package with one member of each kind, installed into a virtual environment and used from there."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "examples" / "plugin"
MEMBERS = {
    "methods": "softmax-replay",
    "networks": "pooled",
    "aggregators": "quantile",
    "datasets": "bars",
    "loggers": "jsonl",
    "engines": "reversed",
}
END = "\f"
# One process for all lists: each would spend seconds on imports.
LISTS = f"""
from fcil.cli.app import app
for kind in {list(MEMBERS)!r}:
    app(["list", kind], standalone_mode=False)
    print({END!r}, end="")
app(["list", "settings", "--markdown"], standalone_mode=False)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment with the plugin, which sees the packages of this one."""
    folder = tmp_path_factory.mktemp("plugin")
    source, environment = folder / "source", folder / "environment"
    shutil.copytree(PLUGIN, source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "parent.pth").write_text("\n".join([str(ROOT), *site.getsitepackages()]))
    made = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(made), "--quiet", "--disable-pip-version-check"]
    install = [*pip, "install", "--no-deps", "--no-index", "--no-build-isolation", str(source)]
    subprocess.run(install, check=True, capture_output=True)
    return made


def run(python: Path, *arguments: str, folder: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [str(python), "-m", *arguments]
    ended = subprocess.run(
        command, cwd=folder, env={**environment, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_every_member_is_listed_and_its_settings_too(python: Path, tmp_path: Path) -> None:
    (tmp_path / "lists.py").write_text(LISTS)
    *lists, settings = run(python, "lists", folder=tmp_path).split(END)
    for (kind, name), listed in zip(MEMBERS.items(), lists, strict=True):
        assert {name, "fcil-example"} <= set(listed.split()), kind
    for key in (
        "model.pooled.depth",
        "federation.quantile.share",
        "data.bars.noise",
        "log.jsonl.file",
        "method.smoothing",
    ):
        assert f"`{key}`" in settings


def test_a_run_uses_one_of_each_kind(python: Path, tmp_path: Path) -> None:
    (tmp_path / "all.toml").write_text(
        """
[data]
source = "bars"
[data.bars]
per_class = 20
[scenario]
tasks = 2
rounds_per_task = 2
initial_clients = 3
participants = 2
memory = 12
[model]
name = "pooled"
width = 16
[model.pooled]
depth = 1
[train]
epochs = 2
learning_rate = 0.1
[federation]
aggregator = "quantile"
[run]
engine = "reversed"
[method]
name = "softmax-replay"
[log.jsonl]
file = "rounds.jsonl"
"""
    )
    run(python, "fcil", "run", "all.toml", "--out", "run", "--log", "jsonl", "--quiet", folder=tmp_path)
    lines = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["method"] == "softmax-replay"


@pytest.mark.numeric
def test_its_members_keep_the_contracts(python: Path, tmp_path: Path) -> None:
    shutil.copytree(PLUGIN / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    passed = run(python, "pytest", "-q", "-p", "no:cacheprovider", "tests", folder=tmp_path)
    assert "failed" not in passed


@pytest.mark.numeric
def test_a_softmax_loss_learns_the_digits_with_the_preset(python: Path, tmp_path: Path) -> None:
    settings = ["scenario.tasks=[5, 5]", "scenario.rounds_per_task=3", "model.name=cnn", "run.engine=serial"]
    flags = [part for setting in settings for part in ("--set", setting)]
    run(
        python,
        "fcil",
        "run",
        "digits",
        "--method",
        "softmax-replay",
        *flags,
        "--out",
        "run",
        "--quiet",
        folder=tmp_path,
    )
    accuracy = json.loads((tmp_path / "run" / "summary.json").read_text())["accuracy"]
    assert accuracy[0] > 70
    assert accuracy[-1] > 50
