"""A whole federation on one machine: server, proxy and sites as processes with their own keys and folders."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fcil.core.errors import ConfigError, FederationError
from fcil.core.files import exists
from fcil.core.messages import derive_seed
from fcil.core.net import free_port
from fcil.core.parent_watch import POLL as OWNER_POLL
from fcil.core.subprocesses import start_child
from fcil.data.datasets.dataset import Source
from fcil.deployment.keys.make import make_proxy_keys, make_secret, make_server_keys, make_site_keys
from fcil.deployment.server.roster import Roster
from fcil.deployment.server.run import terms_of
from fcil.experiment.config import Config, load_config
from fcil.experiment.journal import FILE as RECORDS_FILE
from fcil.experiment.model_file import FILE as MODEL_FILE
from fcil.experiment.run import read_finished
from fcil.experiment.summary import Summary

POLL = 0.2  # seconds between two checks of the processes
PATIENCE = 30.0  # seconds that a process has to end by itself
LEAVING = 10.0  # seconds that a site or the proxy has to end after a signal
HOST = "127.0.0.1"
LIMITS = "limits.toml"
FEW = "hold_out_images = 1  # the sites of a demo have few images; the default hides a class with fewer than 10\n"
Say = Callable[[str], None]


@dataclass(frozen=True)
class DemoPlan:
    """A demo: its configuration, the sites at the beginning, the rounds, and the directory for everything."""

    config: str  # a preset or a file
    settings: tuple[str, ...]
    sites: int
    rounds: int
    out: Path

    @property
    def names(self) -> list[str]:
        """Return the sites' names, the late one last."""
        return [f"site-{number}" for number in range(1, self.sites + 2)]

    @property
    def halfway(self) -> int:
        """Return the round after which a new class arrives and a late site joins."""
        return self.rounds // 2


@dataclass
class LocalDemo:
    """The processes of a federation on this machine, and their folders."""

    plan: DemoPlan
    config: Config
    source: Source
    say: Say
    proxied: bool
    port: int = field(default_factory=free_port)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def old_classes(self) -> range:
        """Return the classes at the beginning."""
        return range(self.source.classes // 2)

    @property
    def new_class(self) -> int:
        """Return the class that arrives half-way."""
        return self.source.classes // 2

    def run(self) -> Summary:
        """Run the federation and return its figures; all processes have ended then, also after an error."""
        out = self.plan.out
        self._make_keys()
        (out / LIMITS).write_text(FEW)
        for site in range(self.plan.sites):
            self._fill(site, list(self.old_classes))
        with ExitStack() as stack:
            stack.callback(self._end_all)
            log = stack.enter_context((out / "server.log").open("wb"))
            try:
                self._start_parties(log)
                self._watch()
            except KeyboardInterrupt:
                self.say("ending all processes, the server after its round; once more to end them at once")
                raise
        return read_finished(out / "server")

    # --- keys and images -------------------------------------------------------------------------------------------

    def _make_keys(self) -> None:
        """Make throw-away keys, each in its owner's folder, and copy the public files to the others."""
        keys = self.plan.out / "keys"
        make_server_keys(keys / "server", [HOST])
        make_secret(keys / "consortium.secret")
        parties = [*self.plan.names]
        for name in self.plan.names:
            make_site_keys(keys / name, name)
        if self.proxied:
            make_proxy_keys(keys / "proxy")
            Roster.load(keys / "server").add(keys / "proxy" / "node.pub", role="proxy")
            for name in self.plan.names:
                shutil.copy(keys / "proxy" / "proxy.pub", keys / name)
            parties.append("proxy")
        for name in parties:
            shutil.copy(keys / "server" / "ca.crt", keys / name)
            shutil.copy(keys / "consortium.secret", keys / name)
        for name in self.plan.names[: self.plan.sites]:
            Roster.load(keys / "server").add(keys / name / "site.pub")

    def _share(self, site: int, label: int) -> NDArray[np.int64]:
        """Return the indices of a site's images of a class; each image belongs to one site."""
        members = np.flatnonzero(self.source.train.labels.numpy() == label)
        random = np.random.default_rng(derive_seed(self.config.seed, "share", label))
        parts: list[NDArray[np.int64]] = np.array_split(random.permutation(members), self.plan.sites + 1)
        return parts[site]

    def _fill(self, site: int, labels: list[int]) -> None:
        """Copy a site's images of some classes into its folder."""
        folder = self.plan.out / "data" / self.plan.names[site]
        for label in labels:
            place = folder / self.source.class_names[label]
            place.mkdir(parents=True, exist_ok=True)
            for index in self._share(site, label).tolist():
                pixels = self.source.train.images[index].numpy().transpose(1, 2, 0)
                picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
                partial = place / f".{index}.png"
                picture.save(partial)
                partial.rename(place / f"{index}.png")

    # --- processes ------------------------------------------------------------------------------------------------

    def _start_parties(self, log: IO[bytes]) -> None:
        plan = self.plan
        chosen = [f"--set={setting}" for setting in (*plan.settings, *self._settings())]
        address = f"{HOST}:{self.port}"
        keys, out = str(plan.out / "keys" / "server"), str(plan.out / "server")
        command = ["federation", "serve", plan.config, "--address", address, "--keys", keys, "--out", out, *chosen]
        self.running["server"] = start_child(command, log)
        if self.proxied:
            self._start("proxy", "proxy")
        for name in plan.names[: plan.sites]:
            self._start(name, "join")
        parties = f"a server{', a proxy' if self.proxied else ''} and {plan.sites} sites"
        self.say(f"{parties} on {address}, each a process with its own keys and folders in {plan.out}")

    def _start(self, name: str, command: str) -> None:
        out = self.plan.out
        (out / "state").mkdir(exist_ok=True)
        options = ["--server", f"{HOST}:{self.port}", "--keys", str(out / "keys" / name)]
        options += ["--state", str(out / "state" / name)]
        options += ["--limits", str(out / LIMITS), "--accept", self._terms]
        options += ["--data", str(out / "data" / name)] if command == "join" else []
        with (out / f"{name}.log").open("wb") as log:
            self.running[name] = start_child(["federation", command, *options], log)

    @cached_property
    def _terms(self) -> str:
        """The digest of the terms, which the demo accepts for its own parties."""
        return terms_of(load_config(self.plan.config, (*self.plan.settings, *self._settings()))).digest

    def _settings(self) -> list[str]:
        """Return the settings that turn the experiment into a federation of this size on this data."""
        channels, side, _ = self.source.image_shape
        values = {
            "deployment.rounds": self.plan.rounds,
            "deployment.evaluate_every": max(self.plan.rounds // 4, 1),
            "deployment.min_sites": self.plan.sites,
            "deployment.image_size": side,
            "deployment.channels": channels,
            "deployment.deadline": 120.0,
            "deployment.patience": 120.0,
            "model.mean": list(self.source.mean),
            "model.deviation": list(self.source.deviation),
        }
        return [f"{key}={value}" for key, value in values.items()]

    def _watch(self) -> None:
        """Print the server's output until it ends, and start the new class and the late site half-way."""
        server, arrived = self.running["server"], False
        for line in self._lines():
            if line:
                self.say(line)
            if not arrived and _rounds(self.plan.out / "server") >= self.plan.halfway:
                arrived = True
                self._arrive()
            ended = [name for name, child in self.running.items() if name != "server" and child.poll() not in (None, 0)]
            if ended and server.poll() is None:
                raise FederationError(f"{ended[0]} has ended early: {self._last_words(ended[0])}")
        if server.returncode:
            raise FederationError(f"the server has ended early: {self._last_words('server')}")
        until = time.monotonic() + PATIENCE
        for name, child in self.running.items():
            try:
                child.wait(max(until - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                self.say(f"{name} was away when the federation ended; it is stopped, see {self.plan.out / name}.log")
                _end([child], LEAVING)

    def _lines(self) -> Iterator[str]:
        """Yield the lines of the server's log until it ends, and an empty one after each poll."""
        server = self.running["server"]
        with (self.plan.out / "server.log").open(encoding="utf-8", errors="replace") as log:
            while True:
                over = server.poll() is not None
                yield from log.read().splitlines()
                if over:
                    return
                yield ""
                time.sleep(POLL)

    def _arrive(self) -> None:
        """Add the new class at some sites, and start the late site."""
        plan, late = self.plan, self.plan.sites
        holders = list(range(max(1, plan.sites - 1)))
        for site in holders:
            self._fill(site, [self.new_class])
        self._fill(late, [*self.old_classes, self.new_class])
        keys = plan.out / "keys"
        Roster.load(keys / "server").add(keys / plan.names[late] / "site.pub")
        self._start(plan.names[late], "join")
        where = " and ".join(plan.names[site] for site in holders)
        name = self.source.class_names[self.new_class]
        self.say(f"now class {name} arrives at {where}, and {plan.names[late]} joins with images of its own")

    def _last_words(self, name: str) -> str:
        text = (self.plan.out / f"{name}.log").read_text("utf-8", "replace").strip()
        return f"{text.splitlines()[-1] if text else 'without a word'} (see {self.plan.out / name}.log)"

    def _end_all(self) -> None:
        """End the processes: the server first, which may finish its round with the sites.

        A process that does not end in time is killed; a second Ctrl-C kills all of them.
        """
        server = [child for name, child in self.running.items() if name == "server"]
        others = [child for name, child in self.running.items() if name != "server"]
        with suppress(KeyboardInterrupt):
            _end(server, PATIENCE)
            _end(others, LEAVING)
        left = [child for child in self.running.values() if child.poll() is None]
        for child in left:
            child.kill()
        for child in left:
            child.wait()
        if left:
            time.sleep(2 * OWNER_POLL)  # until Flower's processes notice that their owners are gone


def _end(children: list[subprocess.Popen[bytes]], patience: float) -> None:
    """Send SIGTERM to processes and wait for them."""
    for child in children:
        if child.poll() is None:
            child.terminate()
    until = time.monotonic() + patience
    while any(child.poll() is None for child in children) and time.monotonic() < until:
        time.sleep(POLL)


def _rounds(folder: Path) -> int:
    """Return the number of rounds in a server's records."""
    path = folder / RECORDS_FILE
    return path.read_bytes().count(b"\n") if exists(path) else 0


def free_folder(out: Path | None, config: str) -> Path:
    """Return the directory asked for, which must be empty or new, or the first free numbered one."""
    if out is not None:
        if exists(out) and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(f"--out {out} is not empty; name another directory")
        return out
    name = f"federation-{Path(config).stem}"
    numbered = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(place for place in numbered if not exists(place))


def models_of(plan: DemoPlan) -> list[Path]:
    """Return the final models of the sites, which have class names."""
    found = (plan.out / "state" / name / MODEL_FILE for name in plan.names)
    return [path for path in found if exists(path)]
