"""Metrics, status files, certificates that end soon and the log of Flower."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.command import fcil
from support.consortium import SITES, Build, Keyring
from support.records import record

from fcil.core import pulse
from fcil.core.errors import ConfigError
from fcil.core.net import free_port
from fcil.core.pulse import PULSE
from fcil.deployment.flower import process
from fcil.deployment.flower.process import LOG, rotate_log
from fcil.deployment.keys.expiry import days_left, file_warnings
from fcil.deployment.keys.tls import SERVER_LIFE, read_certificate
from fcil.deployment.metrics import Exporter, PartyFigures
from fcil.experiment.party_status import FILE, Status, read_status

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana-dashboard.json"
SERVER = Status(
    kind="server",
    federation="f" * 32,
    method="glfc",
    version="1",
    phase="round 3",
    ready=True,
    round=2,
    rounds=9,
    certificates={"server.crt": 30},
    parties=[
        {"number": 0, "name": "north", "role": "site", "connected": True, "seconds": 1.5, "samples": 12},
        {"number": 1, "name": "so\nuth", "role": "site", "connected": False, "last_seen": "2026-11-19T20:00:00+00:00"},
        {"number": 2, "name": "proxy", "role": "proxy", "connected": True},
    ],
)
RECORDS = [
    record(0, participants=[0, 1], reports=2, seconds=2.0, per_class={"a": (3, 4)}),
    record(
        1,
        participants=[0, 1],
        reports=1,
        seconds=4.0,
        failures=[{"client": 1, "round": 2, "stage": "answer", "reason": "x"}],
        sites={"0": {"seconds": 1.5, "samples": 12, "up": 100, "down": 300}},
    ),
]


def values(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def ask(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_prometheus_reads_the_figures_of_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"127.0.0.1:{free_port()}"
    status = Status(**SERVER)
    with Exporter(address, PartyFigures(tmp_path, lambda: status, lambda: RECORDS)):
        found = values(ask(address, "/metrics")[1])
        assert found["fcil_round",] == 2
        assert found["fcil_sites_connected",] == 1
        assert found["fcil_site_connected", "so\nuth"] == 0
        assert found["fcil_site_rounds_total", "failed", "so\nuth"] == 1
        assert found["fcil_site_bytes_total", "down", "north"] == 300
        assert (found["fcil_accuracy_percent",], found["fcil_accuracy_round",]) == (75, 1)
        assert found["fcil_certificate_days", "server.crt"] == 30
        assert found["fcil_round_seconds",] == 4
        assert ask(address, "/healthz") == (200, "alive\n")
        assert ask(address, "/readyz") == (200, "round 3\n")
        status.update({"ready": False, "phase": "round 3 waits"})
        assert ask(address, "/readyz") == (503, "round 3 waits\n")
        assert ask(address, "/etc/passwd")[0] == 404
        monkeypatch.setattr(PULSE, "_last", PULSE._last - pulse.HUNG - 1)
        assert ask(address, "/healthz")[0] == 503
        PULSE.beat()


def test_every_figure_of_the_dashboard_exists(tmp_path: Path) -> None:
    asked = json.dumps(json.loads(DASHBOARD.read_text()))
    server = Exporter(f"127.0.0.1:{free_port()}", PartyFigures(tmp_path, lambda: SERVER, lambda: RECORDS))
    site: Status = {"kind": "site", "connected": True, "trained": 3, "seconds": 1.0, "images": 9, "classes": 2}
    own = Exporter(f"127.0.0.1:{free_port()}", PartyFigures(tmp_path, lambda: site))
    known = {name for one in (server, own) for name, *_ in values(one.answer("/metrics")[2].decode())}
    used = {word for word in _words(asked) if word.startswith("fcil_")}
    assert len(used) >= 10
    assert used <= known
    for one in (server, own):
        one.server_close()


def _words(text: str) -> list[str]:
    return "".join(sign if sign.isalnum() or sign == "_" else " " for sign in text).split()


def test_an_address_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=r"--metrics .* nothing can listen there"):
            Exporter(f"127.0.0.1:{taken.getsockname()[1]}", PartyFigures(tmp_path, lambda: SERVER))


def test_certificates_are_warned_of_from_sixty_days_before_their_end(keyring: Keyring) -> None:
    path = keyring.place / "server" / "server.crt"
    end = read_certificate(path).not_valid_after_utc
    days = days_left(path)
    assert days is not None
    assert SERVER_LIFE.days - 2 <= days <= SERVER_LIFE.days
    assert file_warnings({path: "renew it"}, end - timedelta(days=61)) == []
    (warning,) = file_warnings({path: "renew it"}, end - timedelta(days=59))
    assert warning == f"{path} expires on {end:%Y-%m-%d}, in 59 days; renew it"
    assert file_warnings({path.with_name("gone.crt"): "renew it"}) == []


def test_a_long_log_of_flower_is_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LONG", 100)
    rotate_log(tmp_path)
    with (tmp_path / LOG).open("ab", buffering=0) as log:
        log.write(b"." * 100)
        rotate_log(tmp_path)
        assert (tmp_path / LOG).stat().st_size == 100
        log.write(b"!")
        rotate_log(tmp_path)
        log.write(b"after")
    assert (tmp_path / LOG).read_bytes() == b"after"
    assert (tmp_path / "flower.1.log").stat().st_size == 101


def test_sites_and_server_write_their_status_down(build: Build, tmp_path: Path) -> None:
    made = build("icarl", "deployment.evaluate_every=1", rounds=2)
    for name in SITES[:3]:
        made.add(name, "ant", *range(8))
    made.serve()
    assert made.server is not None
    records = made.play()
    made.server.live.look()
    assert made.run is not None
    found = read_status(made.run.folder)
    assert (found["kind"], found["round"], found["ready"], found["alive"]) == ("server", 2, True, False)
    parties = {party["name"]: party for party in found["parties"]}
    assert parties["aachen"]["samples"] == 7
    assert parties["aachen"]["up"] > 1000
    assert parties["aachen"]["release"] == found["version"]
    assert [record.sites["0"]["samples"] for record in records] == [0, 7], "a class has its output in the next round"
    assert records[0].sites["2"]["down"] > 1000
    assert records[0].began <= records[0].ended <= records[1].began
    site = read_status(made.state("aachen"))
    assert (site["kind"], site["name"], site["round"], site["trained"]) == ("site", "aachen", 2, 2)
    assert (site["classes"], site["images"], site["samples"]) == (1, 8, 7)
    made.wire.away = {0}
    made.server.live.look()
    assert not read_status(made.run.folder)["parties"][0]["connected"]

    shown = fcil("federation", "status", made.run.folder).stdout
    assert "(not running)" in shown
    assert "last seen 20" in shown
    assert "on 1 of 1 classes, 3 images" in shown
    assert json.loads(fcil("federation", "status", made.state("aachen"), "--json").stdout)["images"] == 8
    assert "8 images of 1 classes; 7 in the last round" in fcil("federation", "status", made.state("aachen")).stdout
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / FILE).write_text("{")
    assert fcil("federation", "status", tmp_path / "empty").returncode == 2
