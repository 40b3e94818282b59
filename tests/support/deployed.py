"""A consortium of real processes on 127.0.0.1 for a test: keys, folders, and everybody ended by their id."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image

from fcil.core.net import free_port
from fcil.deployment.keys.make import make_proxy_keys, make_secret, make_server_keys, make_site_keys
from fcil.deployment.server.roster import Roster
from fcil.deployment.server.run import terms_of
from fcil.experiment.config import load_config

PATIENCE = 240.0  # seconds for what should take a few, on a busy machine; a test never asserts them
CONFIG = """
seed = 5
[scenario]
participants = 9
memory = 12
[model]
width = 2
mean = [0.4]
deviation = [0.3]
[train]
epochs = 2
batch_size = 16
learning_rate = 0.2
milestones = []
[deployment]
rounds = 4
min_sites = 2
deadline = 60.0
patience = 180.0  # below PATIENCE, so that a server that waits in vain says for whom
evaluate_every = 2
image_size = 8
channels = 1
[method]
name = "glfc"
[method.glfc]
rebuild_evaluations = 20
rebuild_restarts = 0
perturb_steps = 2
"""


def paint(folder: Path, label: int, count: int, seed: int) -> None:
    """Put pictures of a class into a folder: each class lights up a corner of its own, under noise."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng([label, seed])
    for number in range(count):
        pixels = draw.integers(0, 60, (8, 8), dtype=np.uint8)
        row, column = 4 * (label // 2 % 2), 4 * (label % 2)
        pixels[row : row + 4, column : column + 4] += 150
        Image.fromarray(pixels).save(folder / f"{seed}-{number}.png")


class Consortium:
    """Keys, folders and processes of a small federation; use it in a `with`."""

    def __init__(self, place: Path, *sites: str, proxy: bool = True, config: str = CONFIG) -> None:
        self.place = place
        self.sites = sites
        self.port = free_port()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.config = place / "federation.toml"
        self.config.write_text(config)
        make_server_keys(self.keys("server"), ["127.0.0.1"])
        make_secret(place / "consortium.secret")
        if proxy:
            make_proxy_keys(self.keys("proxy"))
            self._complete("proxy")
            Roster.load(self.keys("server")).add(self.keys("proxy") / "node.pub", role="proxy")
        for name in sites:
            self.found(name)
            self.register(name)

    def __enter__(self) -> Consortium:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.running.values():
            if child.poll() is None:
                child.kill()
            child.wait()

    @property
    def address(self) -> str:
        """Return where the server listens."""
        return f"127.0.0.1:{self.port}"

    @property
    def out(self) -> Path:
        """Return the server's run directory."""
        return self.place / "server"

    def keys(self, name: str) -> Path:
        """Return a party's folder of keys."""
        return self.place / "keys" / name

    def data(self, name: str) -> Path:
        """Return a site's folder of images."""
        folder = self.place / "data" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def state(self, name: str) -> Path:
        """Return the folder in which a party remembers."""
        return self.place / "state" / name

    def found(self, name: str) -> None:
        """Make a site's keys, complete."""
        make_site_keys(self.keys(name), name)
        if (self.keys("proxy") / "proxy.pub").exists():
            shutil.copy(self.keys("proxy") / "proxy.pub", self.keys(name))
        self._complete(name)

    def register(self, name: str) -> None:
        """Let the administrator add a site."""
        Roster.load(self.keys("server")).add(self.keys(name) / "site.pub")

    def _complete(self, name: str) -> None:
        shutil.copy(self.keys("server") / "ca.crt", self.keys(name))
        shutil.copy(self.place / "consortium.secret", self.keys(name))

    def serve(self, *settings: str, resume: bool = False, options: Sequence[str] = ()) -> None:
        """Start the server."""
        command = [
            "federation",
            "serve",
            str(self.config),
            "--address",
            self.address,
            "--keys",
            str(self.keys("server")),
        ]
        self.terms = terms_of(load_config(str(self.config), settings)).digest
        command += ["--out", str(self.out), *(f"--set={setting}" for setting in settings)]
        self.start("server", [*command, *(["--resume"] if resume else []), *options])

    def join(
        self, name: str, agreed: bool = True, until: tuple[str, int] | None = None, further: Sequence[str] = ()
    ) -> None:
        """Start a site, whose owner has agreed to the terms or has not seen them.

        `until` names a kind of request, and how many of them it takes to kill the site.
        """
        options = ["--keys", str(self.keys(name)), "--data", str(self.data(name)), "--state", str(self.state(name))]
        options += ["--least-images", "1", *(self._agreed() if agreed else [])]
        command = ["federation", "join", "--server", self.address, *options, *further]
        if until is None:
            self.start(name, command)
        else:
            self.start(name, [until[0], str(until[1]), *command], "support.mortal")

    def consult(self) -> None:
        """Start the proxy."""
        options = ["--keys", str(self.keys("proxy")), "--state", str(self.state("proxy"))]
        self.start("proxy", ["federation", "proxy", "--server", self.address, *options, *self._agreed()])

    def _agreed(self) -> list[str]:
        """Return the options of a party that accepts the server's terms, and has few images."""
        limits = self.place / "limits.toml"
        limits.write_text("hold_out_images = 1\n")
        return ["--accept", self.terms, "--limits", str(limits)]

    def start(self, name: str, arguments: list[str], module: str = "fcil.core.subprocesses") -> None:
        """Start a process of ours that ends with this one."""
        self.state(name).parent.mkdir(exist_ok=True)
        command = [sys.executable, "-m", module, str(os.getpid()), *arguments]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with self._log(name) as log:
            self.running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
            )

    def _log(self, name: str) -> IO[bytes]:
        return (self.place / f"{name}.log").open("ab")

    def said(self, name: str) -> str:
        """Return what a process has said so far."""
        path = self.place / f"{name}.log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def kill(self, name: str) -> None:
        """Kill a process as a power cut would."""
        self.running[name].send_signal(signal.SIGKILL)
        self.running[name].wait()

    def rounds(self) -> int:
        """Return how many rounds the server has written down."""
        path = self.out / "records.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until something holds, and show all logs if it does not come to that."""
        until = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > until:
                raise AssertionError(f"{what} does not happen\n{self.logs()}")
            time.sleep(0.05)

    def ended(self, name: str) -> int:
        """Wait for a process to end, and return its exit code."""
        self.wait_for(f"the end of {name}", lambda: self.running[name].poll() is not None)
        return self.running[name].returncode

    def logs(self) -> str:
        """Return all logs, for a test that fails."""
        paths = [
            *self.place.glob("*.log"),
            *self.place.glob("*/flower/flower.log"),
            *self.place.glob("state/*/*/*.log"),
        ]
        return "\n".join(
            f"== {path.relative_to(self.place)}\n{path.read_text('utf-8', 'replace')[-3000:]}" for path in paths
        )

    def left_running(self) -> list[str]:
        """Return the processes that know of this place once a moment has passed."""
        until = time.monotonic() + PATIENCE
        while (found := processes(self.place)) and time.monotonic() < until:
            time.sleep(0.1)
        return found


def processes(place: Path) -> list[str]:
    """Return the command lines of the processes, but this one, that name a place."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            if str(place) in line:
                found.append(line)
    return found
