"""Carry out the set-up in docs/deployment.md step by step, each party in a folder of its own, and compare the output.

As root on Linux with iproute2 each party has a network namespace of its own; elsewhere all use 127.0.0.1. All traffic
goes through a relay. With `--faults N` links are delayed or cut and parties killed, N times in all; the rounds must
still end as without faults.
"""

from __future__ import annotations

import argparse
import os
import pty
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "deployment.md"
SITES = ("north", "south", "west")
HOSTS = ("server", "proxy", *SITES)
PATIENCE = 300.0  # seconds for what should take a few, on a busy machine
QUESTION = "[y/N]"
STEP = re.compile(r"^### Step (\d+), (\w+): .*\n((?:(?!^##).*\n)*)", re.MULTILINE)
TOKEN = re.compile(
    r"(\.\.\.|[a-z0-9]{4}(?:-[a-z0-9]{4}){5}|SHA256:\S+|fcil-\S+?:end|\b[0-9a-f]{8,}\b|\d+(?:\.\d+)?)"
)  # what differs from run to run
SMALL = {"rounds": "6", "image_size": "8", "width": "2", "epochs": "1", "rebuild_evaluations": "20", "deadline": "60"}


@dataclass(frozen=True)
class Step:
    """A step of the page: its number, its place, its command, if it has one, and the lines that it shows."""

    number: int
    host: str
    command: str
    shown: tuple[str, ...]


def steps_of(page: str) -> list[Step]:
    """Return the steps of a page."""
    found = []
    for number, host, text in STEP.findall(page):
        block = re.search(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        lines = block[1].splitlines() if block else []
        command = lines.pop(0).removeprefix("$ ") if lines and lines[0].startswith("$ ") else ""
        found.append(Step(int(number), host, command, tuple(line for line in lines if line != "...")))
    return found


def pattern(line: str) -> str:
    """Return a regular expression for a line of the page: fingerprints, digests and numbers may differ."""
    return "".join(".*" if place % 2 else re.escape(part) for place, part in enumerate(TOKEN.split(line.strip())))


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.name = shlex.join(command)
        mine, theirs = pty.openpty()
        environment = {**os.environ, "COLUMNS": "400", "TERM": "dumb", "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        )
        os.close(theirs)
        self.file = mine
        self.text = ""
        self.answered = 0
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # the other side is gone
            while data := os.read(self.file, 1 << 16):
                self.text += data.decode("utf-8", "replace").replace("\r\n", "\n")
                if self.text.count(QUESTION) > self.answered:
                    self.answered += 1
                    self.type("y")

    def type(self, line: str) -> None:
        """Type a line."""
        os.write(self.file, f"{line}\n".encode())

    def expect(self, lines: tuple[str, ...], begin: int = 0) -> None:
        """Wait until lines like these have come, one after the other."""
        until = time.monotonic() + PATIENCE
        while not self._has(lines, begin):
            if time.monotonic() > until or (self.process.poll() is not None and not self.reader.is_alive()):
                raise SystemExit(f"{self.name}\nhas not said\n  " + "\n  ".join(lines) + f"\nbut\n{self.text}")
            time.sleep(0.1)

    def _has(self, lines: tuple[str, ...], place: int) -> bool:
        for line in lines:
            found = re.compile(pattern(line), re.MULTILINE).search(self.text, place)
            if found is None:
                return False
            place = found.end()
        return True

    def ended(self) -> int:
        """Return the exit code once it has ended."""
        code = self.process.wait(PATIENCE)
        self.reader.join(5)
        return code


@dataclass
class Network:
    """Where the parties are, and the relay between them."""

    place: Path
    namespaces: bool
    stack: ExitStack
    names: dict[str, str] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)

    def begin(self) -> None:
        """Make the namespaces, if there are any, and start the relay."""
        hosts = ("relay", *HOSTS)
        if self.namespaces:
            for number, host in enumerate(hosts):
                self._add(host, number)
            relay, server = (self.addresses["relay"], 9000), (self.addresses["server"], 9000)
        else:
            self.addresses = dict.fromkeys(hosts, "127.0.0.1")
            relay, server = ("127.0.0.1", _free_port()), ("127.0.0.1", _free_port())
        self.called, self.bound = f"{relay[0]}:{relay[1]}", f"{'0.0.0.0' if self.namespaces else server[0]}:{server[1]}"
        command = [sys.executable, str(ROOT / "deploy" / "relay.py"), *map(str, (*relay, *server))]
        self.relay = subprocess.Popen([*self.prefix("relay"), *command], stdin=subprocess.PIPE, text=True)
        self.stack.callback(self.relay.wait)
        self.stack.callback(self.relay.terminate)

    def _add(self, host: str, number: int) -> None:
        """Make a namespace with an address; the relay's has the bridge to which all others are tied."""
        name = self.names[host] = f"fcil-{os.getpid()}-{host}"
        self.addresses[host] = f"10.77.0.{number + 1}"
        _ip("netns", "add", name)
        self.stack.callback(_ip, "netns", "del", name)
        _ip("-n", name, "link", "set", "lo", "up")
        near = "bridge0"
        if host == "relay":
            _ip("-n", name, "link", "add", near, "type", "bridge")
        else:
            near = "eth0"
            far, relay = f"to-{host}", self.names["relay"]
            _ip("-n", name, "link", "add", near, "type", "veth", "peer", "name", far, "netns", relay)
            _ip("-n", relay, "link", "set", far, "master", "bridge0", "up")
        _ip("-n", name, "addr", "add", f"{self.addresses[host]}/24", "dev", near)
        _ip("-n", name, "link", "set", near, "up")

    def prefix(self, host: str) -> list[str]:
        """Return what runs a command at a host."""
        return ["ip", "netns", "exec", self.names[host]] if self.namespaces else []

    def tell(self, line: str) -> None:
        """Tell the relay what to do."""
        assert self.relay.stdin is not None
        print(line, file=self.relay.stdin, flush=True)


class Walkthrough:
    """The parties, their terminals, and the mail between them."""

    def __init__(self, place: Path, network: Network, rounds: int) -> None:
        self.place, self.network = place, network
        self.lasting: dict[str, Terminal] = {}
        self.commands: dict[str, str] = {}
        self.sealed = ""
        for host in HOSTS:
            (place / host).mkdir(parents=True)
        small = {**SMALL, "rounds": str(rounds)}
        text = (ROOT / "examples" / "deployment.toml").read_text("utf-8")
        for key, value in small.items():
            text = re.sub(rf"^{key} = \S+", f"{key} = {value}", text, flags=re.MULTILINE)
        (place / "server" / "deployment.toml").write_text(text)
        for seed, site in enumerate(SITES):
            for label, name in enumerate(("cat", "dog", "owl")[: 2 + seed % 2]):
                paint(place / site / "photos" / name, label, seed)

    def start(self, host: str, command: str) -> Terminal:
        """Run a command of the page at a host."""
        local = command.replace("fcil.example.org:9000", self.network.called).replace(
            "0.0.0.0:9000", self.network.bound
        )
        words = shlex.split(local)[1:]
        return Terminal([*self.network.prefix(host), sys.executable, "-m", "fcil", *words], self.place / host)

    def step(self, step: Step) -> None:
        """Run a step of the page, and deliver the mail that it makes."""
        print(f"step {step.number}, {step.host}: {step.command or 'paste'}", flush=True)
        shown = tuple(line.replace("fcil.example.org", "...") for line in step.shown)
        if not step.command:
            terminal = self.lasting[step.host]
            line = next(line for line in self.sealed.splitlines() if f":{step.host}:" in line)
            begin = terminal.text.rindex("paste the line")
            terminal.type(line)
            terminal.expect(tuple(text for text in shown if not text.startswith("fcil-secret")), begin)
            return
        terminal = self.start(step.host, step.command)
        if step.command.split()[2] in ("serve", "join", "proxy"):
            self.lasting[step.host], self.commands[step.host] = terminal, step.command
            terminal.expect(tuple(text.replace("0.0.0.0:9000", "...") for text in shown))
            if step.host != "server":
                terminal.expect(("fcil-request-1:...:end", "paste the line"))
                for reader in ("server", "north"):
                    with (self.place / reader / "requests.txt").open("a") as mail:
                        mail.write("> " + "\n> ".join(re.findall(r"fcil-request-1:\S+", terminal.text)) + "\n")
            return
        if terminal.ended() != 0:
            raise SystemExit(f"{terminal.name}\nfails:\n{terminal.text}")
        terminal.expect(shown)
        if " init " in step.command:
            for host in HOSTS[1:]:
                shutil.copy(self.place / "server" / "keys" / "server" / "invitation.json", self.place / host)
        if " secret " in step.command:
            self.sealed = "\n".join(re.findall(r"fcil-secret-1:\S+", terminal.text))

    def rounds(self) -> int:
        """Return how many rounds the server has recorded."""
        records = self.place / "server" / "run" / "records.jsonl"
        return records.read_bytes().count(b"\n") if records.exists() else 0

    def over(self) -> bool:
        """Say whether the server has ended by itself."""
        return (self.place / "server" / "run" / "summary.json").exists()

    def fault(self, draw: random.Random) -> None:
        """Cause one fault, and let the federation go on for a while."""
        network, host = self.network, draw.choice(HOSTS)
        kind = draw.choice(("kill", "cut", "delay"))
        print(f"after round {self.rounds()}: {kind} {host if kind != 'delay' else ''}", flush=True)
        if kind == "kill":
            self.lasting[host].process.send_signal(signal.SIGKILL)
            self.lasting[host].ended()
            time.sleep(draw.uniform(0, 5))
            self.lasting[host] = self.start(host, self.again(host))
        elif kind == "cut":
            network.tell(f"cut {network.addresses[host]}" if network.namespaces and host != "server" else "cut")
            time.sleep(draw.uniform(1, 20))
            network.tell("heal")
        else:
            network.tell(f"delay {draw.uniform(0.05, 0.4)}")
            time.sleep(draw.uniform(1, 20))
            network.tell("delay 0")
        until = time.monotonic() + draw.uniform(0, 30)
        while time.monotonic() < until and not self.over():
            time.sleep(0.5)

    def again(self, host: str) -> str:
        """Return the command that continues a party."""
        run = self.place / "server" / "run" / "checkpoint.fcil"
        return self.commands[host] + (" --resume" if host == "server" and run.exists() else "")

    def finish(self, rounds: int) -> None:
        """Wait for the end, and see that nothing was lost."""
        until = time.monotonic() + PATIENCE + 60 * rounds
        while not self.over():
            if self.lasting["server"].process.poll() == 1:  # as a service does
                self.lasting["server"] = self.start("server", self.again("server"))
            if time.monotonic() > until:
                raise SystemExit("the rounds do not end:\n" + "\n".join(one.text for one in self.lasting.values()))
            time.sleep(0.5)
        codes = {host: terminal.ended() for host, terminal in self.lasting.items() if host == "server"}
        if codes["server"] != 0 or self.rounds() != rounds:
            raise SystemExit(f"{self.rounds()} of {rounds} rounds, exit codes {codes}:\n{self.lasting['server'].text}")

    def end(self) -> None:
        """End all processes."""
        for terminal in self.lasting.values():
            if terminal.process.poll() is None:
                terminal.process.terminate()
        for terminal in self.lasting.values():
            try:
                terminal.process.wait(30)
            except subprocess.TimeoutExpired:
                terminal.process.kill()


def paint(folder: Path, label: int, seed: int) -> None:
    """Write pictures of a class, each of which lights up a corner under noise."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng([label, seed])
    for number in range(24):
        pixels = draw.integers(0, 60, (8, 8, 3), dtype=np.uint8)
        row, column = 4 * (label // 2 % 2), 4 * (label % 2)
        pixels[row : row + 4, column : column + 4] += 150
        Image.fromarray(pixels).save(folder / f"{seed}-{number}.png")


def may_have_namespaces() -> bool:
    """Say whether this machine lets us make network namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"fcil-{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        _ip("netns", "del", name)
    return made


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Run the steps of the page, cause the faults, and wait for the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place", type=Path, help="a new folder for everything")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--faults", type=int, default=0, help="kills, cuts and delays in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--loopback", action="store_true", help="no namespaces")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    with ExitStack() as stack:
        network = Network(given.place, not given.loopback and may_have_namespaces(), stack)
        network.begin()
        walk = Walkthrough(given.place, network, given.rounds)
        stack.callback(walk.end)
        steps = steps_of(PAGE.read_text("utf-8"))
        for step in steps:
            walk.step(step)
        draw = random.Random(given.seed)
        for _ in range(given.faults):
            if not walk.over():
                walk.fault(draw)
        walk.finish(given.rounds)
        where = "in network namespaces" if network.namespaces else "on 127.0.0.1"
        print(f"{len(steps)} steps and {given.rounds} rounds {where}, with {given.faults} faults")


if __name__ == "__main__":
    main()
