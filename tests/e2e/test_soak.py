"""A small federation of real processes over many rounds, with kills of every party: nothing grows and nothing is lost.

FCIL_SOAK_ROUNDS changes its length, 1,000 rounds by default. It prints what it has seen; `pytest -s` shows it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import sys
import time
from pathlib import Path

import pytest
from support.command import fcil
from support.ledger import Ledger

pytestmark = [
    pytest.mark.soak,
    pytest.mark.xdist_group("federation"),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are read from /proc"),
    pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="the extra flower is not installed"),
]
if importlib.util.find_spec("flwr") is not None:
    from support.deployed import Consortium, paint

ROUNDS = int(os.environ.get("FCIL_SOAK_ROUNDS", "1000"))
RELEASE = 20  # rounds from one release to the next; the models of the newest twenty are kept, and all entries
EVERY = 40  # rounds from one kill to the next, on average
SITES = ("berlin", "paris", "rome")
SETTINGS = (
    "deployment.evaluate_every=25",
    f"deployment.release_every={RELEASE}",
    "deployment.deadline=20.0",
    "deployment.patience=200.0",
    "deployment.attempts=20",
    "train.epochs=1",
    "method.rebuild_evaluations=5",
    f"deployment.rounds={ROUNDS}",
)
MEMORY = 1.0  # MB that a process may have more after 100 rounds
LINE = 4096  # bytes that the server may write per round: a record, a line in its log and Flower's


class Soak:
    """The federation, what is known of it, and who is killed next."""

    def __init__(self, federation: Consortium, seed: int) -> None:
        self.federation, self.draw, self.ledger = federation, random.Random(seed), Ledger()
        self.parties = ["server", "proxy", *SITES]
        self.kills: dict[str, int] = dict.fromkeys(self.parties, 0)
        self.seen = b""  # of the server's records
        self.until = 0.0

    def begin(self) -> None:
        """Start everybody."""
        self.federation.serve(*SETTINGS)
        self.federation.consult()
        for site in SITES:
            self.federation.join(site)

    def follow(self) -> None:
        """Look at the federation after every few rounds and kill somebody now and then, until the server ends."""
        federation, looked, due = self.federation, 0, self._wait()
        self.until = time.monotonic() + 600
        while not (federation.out / "summary.json").exists():
            done = federation.rounds()
            if done >= looked + 5:
                looked, self.until = done, time.monotonic() + 600
                self.look(done)
            if due <= done < ROUNDS - 5:
                self.kill(self.draw.choice(self.parties))
                due = done + self._wait()
            self._check()
            time.sleep(0.1)

    def _wait(self) -> int:
        return 1 + self.draw.randrange(2 * EVERY)

    def _check(self) -> None:
        """Fail if somebody has ended who was not killed, or if nothing happens any more."""
        assert time.monotonic() < self.until, f"no round for ten minutes\n{self.federation.logs()}"
        for name in self.parties:
            code = self.federation.running[name].poll()
            over = (self.federation.out / "summary.json").exists()
            assert code is None or over, f"{name} has ended with {code}\n{self.federation.logs()}"

    def kill(self, name: str) -> None:
        """Kill a party as a power cut would, and start it again."""
        federation = self.federation
        time.sleep(self.draw.uniform(0, 1))
        records = federation.out / "records.jsonl"
        known = records.read_bytes()
        self.keep(known[: known.rfind(b"\n") + 1])
        federation.kill(name)
        self.kills[name] += 1
        time.sleep(self.draw.uniform(0, 2))
        if name == "server":
            federation.serve(*SETTINGS, resume=True)
        elif name == "proxy":
            federation.consult()
        else:
            federation.join(name)

    def keep(self, records: bytes) -> None:
        """Check that no finished round that was seen before is lost or changed."""
        assert records.startswith(self.seen), "a finished round was lost"
        self.seen = records

    def look(self, done: int) -> None:
        """Note down what everybody has."""
        federation = self.federation
        processes = {name: child.pid for name, child in federation.running.items()}
        folders = {"server": federation.out, "keys": federation.place / "keys"}
        self.ledger.look(done, processes, {**folders, **{name: federation.state(name) for name in self.parties[1:]}})


def test_a_thousand_rounds_with_kills_of_every_party(tmp_path: Path) -> None:
    with Consortium(tmp_path, *SITES) as federation:
        for seed, site in enumerate(SITES):
            for label, name in enumerate(("cat", "dog")):
                paint(federation.data(site) / name, label, 8, seed)
        soak = Soak(federation, seed=1)
        soak.begin()
        try:
            soak.follow()
        finally:
            _tell(soak)
        assert federation.ended("server") == 0, federation.logs()
        _check_nothing_lost(soak)
        _check_nothing_grows(soak)
        for name in soak.parties[1:]:
            assert federation.ended(name) == 0, federation.logs()
        assert federation.left_running() == []


def _tell(soak: Soak) -> None:
    lines = [f"{soak.federation.rounds()} rounds, kills: {soak.kills}"]
    for name, (memory, files, threads) in soak.ledger.growth().items():
        lines.append(f"{name}: {memory:+.2f} MB per 100 rounds, {files:+d} open files, {threads:+d} threads")
    for name, found in soak.ledger.folders.items():
        rounds = sorted(found)
        lines.append(f"{name}: {found[rounds[len(rounds) // 2]]} files and bytes, then {found[rounds[-1]]}")
    sys.stdout.write("\n".join(["", *lines, ""]))


def _check_nothing_lost(soak: Soak) -> None:
    federation = soak.federation
    soak.keep((federation.out / "records.jsonl").read_bytes())
    records = [json.loads(line) for line in soak.seen.splitlines()]
    assert [record["round"] for record in records] == list(range(1, ROUNDS + 1))
    assert all(record["classes"] == 2 for record in records[5:]), "no class comes or goes"
    assert fcil("show", federation.out).returncode == 0
    for site in SITES:
        images = json.loads((federation.state(site) / "status.json").read_text())["images"]
        assert images == 16, f"{site} has lost images"


def _check_nothing_grows(soak: Soak) -> None:
    for name, (memory, files, threads) in soak.ledger.growth().items():
        assert memory <= MEMORY, f"{name}: {memory:.2f} MB more per 100 rounds"
        assert files <= 4, f"{name}: {files} more open files"
        assert threads <= 4, f"{name}: {threads} more threads"
    for name, found in soak.ledger.folders.items():
        rounds = sorted(found)
        half, end = rounds[len(rounds) // 2], rounds[-1]
        (files, size), (more, larger) = found[half], found[end]
        assert more <= files + 8 + 2 * ((end - half) // RELEASE), f"{name}: {files} files, then {more}"
        assert larger - size <= LINE * (end - half) + (1 << 16), f"{name}: {size} bytes, then {larger}"
