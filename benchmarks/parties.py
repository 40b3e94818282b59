"""The processes of a federation on this machine, ours or plain Flower's: started, followed and ended.

Used by `deployment.py`; Linux only, since it reads `/proc`. Both kinds have the same certificates, keys and images.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from PIL import Image

from benchmarks.owned import descendants, kill_tree
from fcil.core.errors import FederationError
from fcil.core.net import free_port
from fcil.core.subprocesses import start_child
from fcil.data.datasets.dataset import Source
from fcil.deployment.flower.process import settings
from fcil.deployment.keys.make import (
    ServerKeys,
    SiteKeys,
    make_proxy_keys,
    make_secret,
    make_server_keys,
    make_site_keys,
)
from fcil.deployment.server.roster import Roster
from fcil.deployment.server.run import terms_of
from fcil.experiment.config import load_config
from fcil.experiment.journal import FILE as RECORDS_FILE

HOST = "127.0.0.1"
POLL = 0.02  # seconds between looks at a journal
APP = Path(__file__).parent / "plain_flower"
JOURNAL = "rounds.jsonl"  # of plain Flower, written by its app


# --- what the parties have ----------------------------------------------------------------------------------------


def make_keys(folder: Path, names: Sequence[str]) -> None:
    """Make keys for a server, a proxy and sites, and register all of them."""
    make_server_keys(folder / "server", [HOST])
    make_secret(folder / "consortium.secret")
    make_proxy_keys(folder / "proxy")
    for name in names:
        make_site_keys(folder / name, name)
        shutil.copy(folder / "proxy" / "proxy.pub", folder / name)
    for name in ("proxy", *names):
        shutil.copy(folder / "server" / "ca.crt", folder / name)
        shutil.copy(folder / "consortium.secret", folder / name)
    Roster.load(folder / "server").add(folder / "proxy" / "node.pub", role="proxy")
    for name in names:
        Roster.load(folder / "server").add(folder / name / "site.pub")


def fill(folder: Path, source: Source, classes: Sequence[int]) -> None:
    """Write the images of some classes into a site's folder, each whole before it is seen."""
    for label in classes:
        place = folder / f"class-{label}"
        hidden = folder / f".class-{label}"
        hidden.mkdir(parents=True)
        for index in (source.train.labels == label).nonzero().flatten().tolist():
            pixels = source.train.images[index].numpy().transpose(1, 2, 0)
            Image.fromarray(pixels).save(hidden / f"{index}.png")
        hidden.rename(place)


# --- processes ----------------------------------------------------------------------------------------------------


@dataclass
class Parties:
    """Processes by name, each with a log; whatever they have started ends with them."""

    folder: Path
    until: float  # of the monotonic clock; what is not done by then fails
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    address: str = ""  # of our server

    def fcil(self, name: str, *arguments: str) -> None:
        """Start one of our commands."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = start_child(arguments, log)

    def flower(self, name: str, *command: str) -> None:
        """Start one of Flower's commands as it is, with a home of its own."""
        home = self.folder / name
        home.mkdir()
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.owned", str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **settings(home)},
                start_new_session=True,
            )

    def follow(self, journal: Path, lines: int, enough: int, patience: float) -> list[float]:
        """Return when each line was written, of so many lines, or of enough of them once patience is over."""
        moments: list[float] = []
        over = time.monotonic() + patience
        while len(moments) < lines and not (len(moments) >= enough and time.monotonic() > over):
            found = journal.read_bytes().count(b"\n") if journal.exists() else 0
            moments += [time.perf_counter()] * (found - len(moments))
            self.check()
            time.sleep(POLL)
        return moments

    def check(self) -> None:
        """Raise if a process has ended or the time is over."""
        for name, child in self.running.items():
            if child.poll() is not None:
                raise FederationError(f"{name} has ended: {self._words(name)}")
        if time.monotonic() > self.until:
            raise FederationError("the time is over: this machine is too busy or too slow for the benchmark")

    def _words(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text("utf-8", "replace")[-500:]

    def end(self) -> None:
        """End all processes and what they have started, and wait until they are gone."""
        doomed = kill_tree(child.pid for child in self.running.values())
        for child in self.running.values():
            child.wait()
        while any(alive(process) for process in doomed):
            time.sleep(POLL)

    def __enter__(self) -> Parties:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def alive(process: int) -> bool:
    """Say whether a process still runs."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def peaks(process: int) -> tuple[float, float]:
    """Return the peak memory in MB of a process, and the sum over all that it has started."""
    children = descendants({process}) - {process}
    return _peak(process), sum(_peak(child) for child in children)


def resident(process: int) -> float:
    """Return the resident memory in MB of a process and of all that it has started."""
    return sum(_status(one, "VmRSS") for one in descendants({process}))


def _peak(process: int) -> float:
    return _status(process, "VmHWM")


def _status(process: int, key: str) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


# --- the two federations ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """The place, keys and images of a federation."""

    folder: Path
    keys: Path
    data: Path
    sites: tuple[str, ...]

    @property
    def journal(self) -> Path:
        """Return the server's records."""
        return self.folder / "server" / RECORDS_FILE

    def records(self) -> list[dict[str, Any]]:
        """Return the server's records so far."""
        return _lines(self.journal)


@contextlib.contextmanager
def ours(place: Place, config: Mapping[str, Any], until: float) -> Iterator[Parties]:
    """Give a federation of `fcil federation serve`, `proxy` for glfc, and `join`."""
    place.folder.mkdir()
    address = f"{HOST}:{free_port()}"
    named = [f"{key}={json.dumps(value)}" for key, value in config.items()]
    chosen, accept = [f"--set={setting}" for setting in named], terms_of(load_config("digits", named)).digest
    with Parties(place.folder, until, address=address) as parties:
        out, keys = str(place.folder / "server"), str(place.keys / "server")
        parties.fcil(
            "server", "federation", "serve", "digits", "--address", address, "--keys", keys, "--out", out, *chosen
        )
        if config["method.name"] == "glfc":
            parties.fcil("proxy", "federation", "proxy", *_party(place, "proxy", address), "--accept", accept)
        for name in place.sites:
            data = ("--data", str(place.data / name), "--hold-out", "0", "--least-images", "1")
            parties.fcil(name, "federation", "join", *_party(place, name, address), *data, "--accept", accept)
        yield parties


def _party(place: Place, name: str, address: str) -> tuple[str, ...]:
    return "--server", address, "--keys", str(place.keys / name), "--state", str(place.folder / f"state-{name}")


@contextlib.contextmanager
def plain(place: Place, config: Mapping[str, Any], until: float) -> Iterator[Parties]:
    """Give a federation of `flower-superlink` and `flower-supernode`, which run the app in `plain_flower`."""
    place.folder.mkdir()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**settings(place.folder), "PATH": path}
    with mock.patch.dict(os.environ, environment), Parties(place.folder, until) as parties:
        port, own = str(free_port()), ServerKeys.load(place.keys / "server")
        files = ("--ssl-ca-certfile", str(own.ca), "--ssl-certfile", str(own.certificate))
        where = ("--host", HOST, "--port", port)
        key = ("--ssl-keyfile", str(own.private_key))
        parties.flower("superlink", "flower-superlink", *where, *files, *key, "--enable-supernode-auth")
        with _control(f"{HOST}:{port}", own.ca.read_bytes()) as control:
            _register(control, place, parties)
            for name in place.sites:
                _start_node(parties, place, name, f"{HOST}:{port}")
            _start_run(control, {**config, "journal": str(place.folder / JOURNAL)})
        yield parties


def plain_records(place: Place) -> list[dict[str, Any]]:
    """Return the lines of Flower's app."""
    return _lines(place.folder / JOURNAL)


def _start_node(parties: Parties, place: Place, name: str, address: str) -> None:
    keys = SiteKeys.load(place.keys / name)
    options = ["--superlink", address, "--root-certificates", str(keys.ca)]
    options += ["--auth-supernode-private-key", str(keys.private_key), "--port", str(free_port())]
    options += ["--node-config", f'data="{place.data / name}"']
    parties.flower(name, "flower-supernode", *options)


@contextlib.contextmanager
def _control(address: str, ca: bytes) -> Iterator[Any]:
    """Give the SuperLink's interface for its operator, which `flwr run` and `flwr supernode register` use."""
    from flwr.supercore.control import ControlHttpClient  # noqa: PLC0415 (what it reads of the environment is set now)
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor  # noqa: PLC0415

    version = RuntimeVersionHttpInterceptor(component_name="flwr")
    control = ControlHttpClient.from_server_address(address, False, ca, [version])
    try:
        yield control
    finally:
        control.close()


def _register(control: Any, place: Place, parties: Parties) -> None:
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key  # noqa: PLC0415
    from flwr.proto.control_pb2 import RegisterNodeRequest  # noqa: PLC0415
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes  # noqa: PLC0415

    for name in place.sites:
        public = load_ssh_public_key((place.keys / name / "site.pub").read_bytes())
        request = RegisterNodeRequest(public_key=public_key_to_bytes(public), name=name)  # type: ignore[arg-type]
        _patiently(parties, lambda request=request: control.RegisterNode(request))  # type: ignore[misc]


def _start_run(control: Any, config: Mapping[str, Any]) -> None:
    from flwr.cli.build import build_fab_from_files  # noqa: PLC0415
    from flwr.common.serde import fab_to_proto, user_config_to_proto  # noqa: PLC0415
    from flwr.proto.control_pb2 import StartRunRequest  # noqa: PLC0415
    from flwr.supercore.fab import Fab  # noqa: PLC0415

    content, _ = build_fab_from_files({path.name: path for path in APP.iterdir() if path.is_file()})
    request = StartRunRequest(fab=fab_to_proto(Fab("", content, {})), override_config=user_config_to_proto(config))
    control.StartRun(request)


def _patiently(parties: Parties, ask: Callable[[], object]) -> None:
    """Call until somebody is there to answer."""
    import httpx  # noqa: PLC0415

    while True:
        try:
            ask()
            return
        except httpx.TransportError:
            parties.check()
            time.sleep(0.2)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
