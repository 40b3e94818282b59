"""A federation of real processes is looked at, backed up, given a new certificate, cut off and restored."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import ssl
import urllib.request
from pathlib import Path

import pytest
from support.command import fcil

pytestmark = [
    pytest.mark.xdist_group("federation"),
    pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="the extra flower is not installed"),
]
if importlib.util.find_spec("flwr") is not None:
    from support.deployed import Consortium, paint

    from fcil.core.net import free_port
    from fcil.deployment.keys.make import renew_server_certificate

OWN = ("method.proxy=false", "deployment.rounds=400", "deployment.deadline=60.0", "deployment.evaluate_every=1")


def asked(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return str(answer.read().decode())


def certificate(federation: Consortium) -> str:
    return ssl.get_server_certificate(("127.0.0.1", federation.port))


def test_a_federation_is_operated(tmp_path: Path) -> None:
    with Consortium(tmp_path, "berlin", "paris", proxy=False) as federation:
        for seed, site in enumerate(federation.sites):
            for label, name in enumerate(("cat", "dog")):
                paint(federation.data(site) / name, label, 8, seed)
        ports = free_port(), free_port()
        federation.serve(*OWN, options=["--metrics", f"127.0.0.1:{ports[0]}", "--log-format", "json"])
        federation.join("berlin", further=["--metrics", f"127.0.0.1:{ports[1]}"])
        federation.join("paris")
        federation.wait_for("a round", lambda: federation.rounds() >= 2)

        # status, metrics, log
        _look(federation, ports)
        first = federation.said("server").splitlines()[0]
        assert json.loads(first)["level"] == "INFO"
        assert "serving at" in (federation.out / "fcil.log").read_text()

        # a backup while it runs
        copy = tmp_path / "copies" / "tonight"
        made = fcil("federation", "backup", copy, "--run", federation.out, "--keys", federation.keys("server"))
        assert made.returncode == 0, made.stderr
        kept = (copy / "run" / "records.jsonl").read_bytes().count(b"\n")

        # a new certificate without a restart, and a site that reads its keys again
        before = certificate(federation)
        renew_server_certificate(federation.keys("server"))
        federation.running["server"].send_signal(signal.SIGHUP)
        federation.wait_for("a new certificate", lambda: certificate(federation) != before)
        federation.running["paris"].send_signal(signal.SIGHUP)
        federation.wait_for("keys that are read again", lambda: "are read again" in federation.said("paris"))
        played = federation.rounds()
        federation.wait_for("rounds with both", lambda: federation.rounds() >= max(played, kept) + 4)

        # an outage, and a restore
        federation.kill("server")
        federation.wait_for("an outage", lambda: "has not answered since 20" in federation.said("berlin"))
        assert "server, " in fcil("federation", "status", federation.out).stdout
        shutil.rmtree(federation.out)
        shutil.copytree(copy / "run", federation.out)
        last = kept + 3
        federation.serve(*OWN[:1], f"deployment.rounds={last}", *OWN[2:], options=["--restored"])
        assert federation.ended("server") == 0, federation.logs()
        assert federation.rounds() == last
        assert [federation.ended(site) for site in federation.sites] == [0, 0], federation.logs()
        for site in federation.sites:
            assert f"goes on after round {kept}" in federation.said(site)
        assert "answers again" in federation.said("berlin") or "trying again" in federation.said("berlin")
        assert federation.left_running() == []


def _look(federation: Consortium, ports: tuple[int, int]) -> None:
    """Look at a running federation as its operators do."""
    federation.wait_for("a sign of life", (federation.out / ".alive").exists)
    federation.wait_for("both in the status", lambda: 'connected{site="paris"} 1.0' in asked(ports[0], "/metrics"))
    shown = json.loads(fcil("federation", "status", federation.out, "--json").stdout)
    assert shown["alive"]
    assert {party["name"] for party in shown["parties"]} == {"berlin", "paris"}
    assert all(party["connected"] for party in shown["parties"])
    assert shown["parties"][0]["samples"] > 0
    assert shown["certificates"]["server.crt"] > 800
    assert shown["accuracy"]["classes"] == 2
    words = fcil("federation", "status", federation.out).stdout
    assert "rounds: " in words
    assert "2 of 2 classes" in words
    assert fcil("federation", "status", federation.out, "--check").returncode == 0
    site = fcil("federation", "status", federation.state("berlin")).stdout
    assert f"server: {federation.address}, connected" in site
    assert "of 2 classes" in site
    assert asked(ports[0], "/healthz") == asked(ports[1], "/healthz") == "alive\n"
    assert asked(ports[0], "/readyz").startswith("round ")
    figures = asked(ports[0], "/metrics")
    assert 'fcil_site_connected{site="berlin"} 1.0' in figures
    assert 'fcil_site_rounds_total{outcome="trained",site="paris"}' in figures
    assert "fcil_rounds_trained_total" in asked(ports[1], "/metrics")
    assert fcil("federation", "status", federation.place, "--check").returncode == 1
