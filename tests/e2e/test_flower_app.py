"""The Flower app in `examples/flower`: its apps on a running grid, and the way a Flower user runs it."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import on_flower, running, without_flower
from support.command import fcil

from fcil.core.errors import FederationError
from fcil.federation.engines import ray_local as local_ray

pytestmark = without_flower
APP = Path(__file__).parents[2] / "examples" / "flower"
SETTINGS = [
    "data.samples_per_class=20",
    "scenario.tasks=[2, 2]",
    "scenario.rounds_per_task=1",
    "scenario.initial_clients=4",
    "scenario.participants=3",
    "model.width=2",
    "train.epochs=1",
]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("serial") / "run"
    flags = [flag for setting in SETTINGS for flag in ("--set", setting)]
    done = fcil("run", "digits", "--method", "icarl", "--seed", "9", *flags, "--engine", "serial", "--out", folder)
    assert done.returncode == 0
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Return the modules that the app names as its components."""
    monkeypatch.syspath_prepend(str(APP))
    components = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["components"]
    server, client = (importlib.import_module(components[name].split(":")[0]) for name in ("serverapp", "clientapp"))
    return server, client


def run_config(out: Path, **other: str | int) -> dict[str, str | int]:
    """Return the app's own configuration, changed as `--run-config` would."""
    written = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    ours = {"method": "icarl", "seed": 9, "settings": "; ".join(SETTINGS), "out": str(out)}
    assert set(ours) | set(other) <= set(written)
    return {**written, **ours, **other}


def test_the_apps_on_a_grid_play_the_run_that_the_command_line_plays(
    modules: tuple[Any, Any], expected: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from flwr.app import Context, RecordDict

    from fcil.federation.engines.flower.app import client_app

    server, client = modules
    assert client.app is client_app  # which is what the nodes of the grid run
    on_flower()
    grid = running[0].grid()

    def play(**options: Any) -> None:
        server.app(grid, Context(1, 1, {}, RecordDict(), run_config(**options)))

    play(out=tmp_path / "run")
    said = capsys.readouterr().out
    assert f"icarl on digits: 2 rounds, in {tmp_path / 'run'}" in said
    assert "round 2 of 2: 4 classes, 3 reports, accuracy" in said
    assert "accuracy after each task: [" in said
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == expected
    with pytest.raises(FederationError, match="min_participants"):
        play(out=tmp_path / "stopped", settings="; ".join([*SETTINGS, "train.learning_rate=1e30"]))


class ClientContext:
    """Flower's command line with a home of its own; the SuperLink that it leaves behind is ended by its id."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir()
        ports = {"FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": free_port(), "FLWR_LOCAL_CONTROL_API_PORT": free_port()}
        places = {"FLWR_HOME": str(home), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        silence = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", **local_ray.SETTINGS}
        installed = {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "PYTHONPATH": str(APP.parents[1])}
        # Other tests of this process may have left variables of Ray's and Flower's behind.
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "FLWR_"))}
        self.environment = {**inherited, **places, **ports, **silence, **installed}

    def play(self, out: Path, **other: str) -> str:
        """Run the app on two nodes, and return what was printed."""
        nodes = ["--federation-config", "num-supernodes=2 client-resources-num-cpus=1 init-args-num-cpus=2"]
        return self("run", str(APP), "local", "--stream", *nodes, *as_flags(run_config(out, **other)))

    def __call__(self, *arguments: str) -> str:
        """Return what the command printed."""
        command = [str(Path(sys.executable).parent / "flwr"), *arguments]
        done = subprocess.run(
            command, env=self.environment, cwd=self.home, capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def processes(self) -> dict[int, str]:
        """Return what runs on behalf of this home, Ray included: its environment names it."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if f"FLWR_HOME={self.home}\0".encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # it has just ended, or is not ours
        return found

    def stop(self) -> None:
        """End the SuperLink, and see that all that it had started ends with it."""
        for number, command in self.processes().items():
            if "flower-superlink" in command:
                os.kill(number, signal.SIGTERM)
        patience = time.monotonic() + 30
        while left := self.processes():
            assert time.monotonic() < patience, left
            time.sleep(0.1)


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def as_flags(config: dict[str, str | int]) -> list[str]:
    """Return a run's configuration as options of `flwr run`."""
    return [flag for key, value in config.items() for flag in ("--run-config", f"{key}={json.dumps(value)}")]


@pytest.fixture
def flwr(tmp_path: Path) -> Iterator[ClientContext]:
    """Give Flower's command line as it is after the installation."""
    if not Path("/proc").is_dir():
        pytest.skip("needs /proc to look for what is left")
    local = ClientContext(tmp_path / "flower")
    yield local
    local.stop()


def test_flwr_run_from_an_empty_home_plays_the_run(flwr: ClientContext, expected: bytes, tmp_path: Path) -> None:
    assert "round 2 of 2: 4 classes, 3 reports, accuracy" in flwr.play(tmp_path / "run")
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == expected


@pytest.mark.soak  # half a minute per run
def test_flwr_run_marks_a_run_that_stops_as_failed(flwr: ClientContext, tmp_path: Path) -> None:
    flwr.play(tmp_path / "run")
    wild = "; ".join([*SETTINGS, "train.learning_rate=1e30"])
    assert "federation.min_participants asks for 1" in flwr.play(tmp_path / "stopped", settings=wild)
    listed = flwr("ls", "local", "--format", "json")
    statuses = [run["status"] for run in json.loads(listed[listed.index("{") :])["runs"]]
    assert sorted(statuses) == ["finished:completed", "finished:failed"]
