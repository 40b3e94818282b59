"""The demonstration, on a smaller federation than the one it shows."""

from __future__ import annotations

import fcntl
import json
import shutil
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest
from rich.console import Console

from fcil.experiment.config import load_config
from fcil.reporting.compare import demo

SMALL = """
[data]
samples_per_class = 6
[scenario]
tasks = 2
rounds_per_task = 1
initial_clients = 2
joiners = 1
participants = 2
memory = 8
[model]
width = 2
[train]
epochs = 1
[method.glfc]
rebuild_evaluations = 20
perturb_steps = 2
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    monkeypatch.setattr(demo, "PRESET", str(path))
    monkeypatch.setattr(demo, "installed_file", lambda released: None)
    return tmp_path / "demo"


def test_the_demo_compares_its_methods_and_names_its_report(small: Path) -> None:
    console = Console(record=True, width=140)
    demo.run_demo(console, small, seed=4)
    said = console.export_text()
    assert f"report: {small / 'report.md'}" in said
    for method in ("glfc", "finetune", "mosaic"):
        summary = json.loads((small / method / "summary.json").read_text())
        assert (summary["method"], summary["seed"]) == (method, 4)
        assert f"{method}  task 2/2  round 2/2" in said
        assert f"| {method} | " in (small / "report.md").read_text()
    assert (small / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert f"page to look at: {small / 'report.html'}" in said
    assert "GLFC, plain averaging and Mosaic, digits, seed 4" in (small / "report.html").read_text()

    shutil.rmtree(small / "finetune")  # as if it had been cut before its first round
    kept = (small / "glfc" / "summary.json").read_bytes()
    demo.run_demo(console, small, seed=4)
    assert (small / "finetune" / "model.safetensors").exists()
    assert json.loads(kept)["accuracy"] == json.loads((small / "glfc" / "summary.json").read_text())["accuracy"]
    assert not small.with_name("demo-2").exists()

    (small / "glfc" / "summary.json").unlink()  # unfinished, but of another seed
    places = demo._places(small)
    assert [demo._is_open(place, 4) for place in places] == [True, True]
    assert [demo._is_open(place, 5) for place in places] == [False, True]


def test_pre_trained_features_are_shown_where_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for path, shown in ((Path("weights.pth"), (*demo.METHODS, "analytic")), (None, demo.METHODS)):
        monkeypatch.setattr(demo, "installed_file", lambda released, path=path: path)
        assert demo.methods() == shown
    model = load_config(demo.PRESET, demo._settings("analytic")).model
    assert (model.name, model.weights, model.freeze) == ("efficientnet-lite0", "imagenet", True)
    assert load_config(demo.PRESET, demo._settings("mosaic")).model.name == "resnet18"


def test_an_interrupted_demo_says_how_many_runs_finished_and_leaves_none_alive(tmp_path: Path) -> None:
    (tmp_path / "long.toml").write_text(SMALL.replace("rounds_per_task = 1", "rounds_per_task = 500"))
    code = "import sys; from fcil.cli import app; from fcil.reporting.compare import demo; "
    code += "demo.PRESET = sys.argv.pop(); demo.installed_file = lambda released: None; app.main()"
    arguments = ["demo", "--out", str(tmp_path / "demo"), str(tmp_path / "long.toml")]
    started = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    while "  round 1/" not in started.stdout.readline():
        assert started.poll() is None, started.communicate()
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=120)
    assert (started.returncode, errors) == (130, "interrupted with 0 of 3 runs finished; the same command continues\n")
    for method in demo.METHODS:
        if (tmp_path / "demo" / method / ".lock").exists():
            with (tmp_path / "demo" / method / ".lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_no_more_runs_go_on_at_once_than_a_small_machine_has_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    alive: list[int] = []

    def start(method: str, folder: Path, seed: int) -> subprocess.Popen[bytes]:
        alive.append(sum(child.poll() is None for child in started))
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)"], stdout=subprocess.PIPE))
        return started[-1]

    monkeypatch.setattr(demo, "_start", start)
    codes = demo._run(Console(quiet=True), [tmp_path / method for method in demo.METHODS], seed=1)
    assert codes == [0, 0, 0]
    assert alive[:2] == [0, 1], "two begin together"
    assert max(alive) == 1, "the third waits for one of them"


def test_an_error_of_a_run_is_shown_once_and_what_else_it_said_is_kept() -> None:
    child = subprocess.Popen([sys.executable, "-c", "print('error: x\\ntrace')"], stdout=subprocess.PIPE)
    console, hidden = Console(record=True, quiet=False), deque[str]()
    demo._relay(child, console, hidden)
    assert child.wait() == 0
    assert (console.export_text(), list(hidden)) == ("error: x\n", ["trace\n"])


@pytest.mark.parametrize("written", [".", "..", "/"])
def test_a_directory_without_a_name_has_numbered_ones_after_it(written: str) -> None:
    first, *_, last = demo._places(Path(written))
    assert first == Path(written)
    assert last.name.endswith("-2")


def test_a_finished_demo_is_not_overwritten(tmp_path: Path) -> None:
    for method in demo.methods():
        (tmp_path / "demo" / method).mkdir(parents=True)
        (tmp_path / "demo" / method / "summary.json").touch()
    first, second = demo._places(tmp_path / "demo")
    assert (demo._is_open(first, 1), demo._is_open(second, 1)) == (False, True)
    assert second.name == "demo-2"
