"""Figures of a running party for Prometheus, and whether it is alive and ready, over HTTP."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from fcil.core.errors import ConfigError, reason
from fcil.core.net import split_address
from fcil.core.pulse import PULSE, allowance
from fcil.experiment.party_status import PartyFacts, Status
from fcil.federation.round_record import RoundRecord, client_tallies, measured

INFO = ("kind", "name", "federation", "method", "version")
IDLE = 30  # seconds after which a connection that says nothing is closed


class PartyFigures:
    """Collects the figures of a party whenever somebody asks for them."""

    def __init__(
        self, folder: Path, status: Callable[[], Status], records: Callable[[], Sequence[RoundRecord]] = tuple
    ) -> None:
        self.folder = folder
        self.status = status
        self.records = records

    def collect(self) -> Iterator[Metric]:
        """Yield the figures; Prometheus's client calls it."""
        status = self.status()
        facts = {key: str(status[key]) for key in INFO if key in status}  # type: ignore[literal-required]
        yield InfoMetricFamily("fcil", "What this party is", facts)
        yield from _gauges(
            ("fcil_ready", "1 where rounds go on, or where the server answers", float(status.get("ready", False))),
            ("fcil_loop_age_seconds", "Seconds since the last sign of the main loop", PULSE.age),
            (
                "fcil_disk_free_bytes",
                "Free bytes on the disk of this party",
                float(shutil.disk_usage(self.folder).free),
            ),
            ("fcil_round", "Finished rounds", float(status.get("round", 0))),
        )
        days = GaugeMetricFamily("fcil_certificate_days", "Days until a certificate expires", labels=["file"])
        for file, left in status.get("certificates", {}).items():
            days.add_metric([file], left)
        yield days
        yield from self._of_server(status) if status.get("kind") == "server" else _of_site(status)

    def _of_server(self, status: Status) -> Iterator[Metric]:
        parties, records = status.get("parties", []), self.records()
        there = [party for party in parties if party.get("connected")]
        newest = records[-1] if records else None
        yield from _gauges(
            ("fcil_rounds_planned", "Rounds that are planned", float(status.get("rounds", 0))),
            ("fcil_sites_connected", "Connected sites", float(sum(one.get("role") != "proxy" for one in there))),
            ("fcil_round_seconds", "Seconds of the last round", newest.seconds if newest else None),
            ("fcil_round_reports", "Reports in the last round", float(newest.reports) if newest else None),
            ("fcil_classes", "Classes seen", float(newest.classes - newest.retired) if newest else None),
        )
        found = next((one for record in reversed(records) if (one := measured(record)) is not None), None)
        if found is not None:
            yield from _gauges(
                ("fcil_accuracy_percent", "Newest accuracy on hold-out images", found.accuracy),
                ("fcil_accuracy_round", "Round of the newest accuracy", float(found.round)),
                ("fcil_accuracy_classes", "Classes that the newest accuracy covers", float(found.covered)),
            )
        yield from _of_parties(parties, records)


def _of_parties(parties: Sequence[PartyFacts], records: Sequence[RoundRecord]) -> Iterator[Metric]:
    """Yield the figures of each party."""
    connected = GaugeMetricFamily("fcil_site_connected", "1 while a party is connected", labels=["site"])
    seconds = GaugeMetricFamily("fcil_site_answer_seconds", "Seconds until its last answer", labels=["site"])
    samples = GaugeMetricFamily("fcil_site_samples", "Images that it last trained on", labels=["site"])
    seen = GaugeMetricFamily("fcil_site_last_seen_seconds", "Unix time at which it was last connected", labels=["site"])
    for party in parties:
        name = [party.get("name", "?")]
        connected.add_metric(name, float(party.get("connected", False)))
        if "last_seen" in party:
            seen.add_metric(name, datetime.fromisoformat(party["last_seen"]).timestamp())
        if "seconds" in party:
            seconds.add_metric(name, party["seconds"])
        if "samples" in party:
            samples.add_metric(name, party["samples"])
    yield from (connected, seconds, samples, seen)
    names = {party["number"]: party.get("name", "?") for party in parties if "number" in party}
    rounds = CounterMetricFamily("fcil_site_rounds", "Rounds of a site by their outcome", labels=["site", "outcome"])
    for number, tally in client_tallies(records).items():
        for outcome, count in tally.items():
            rounds.add_metric([names.get(number, str(number)), outcome], float(str(count)))
    sent = CounterMetricFamily("fcil_site_bytes", "Bytes between server and site", labels=["site", "direction"])
    totals: dict[tuple[str, str], int] = {}
    for record in records:
        for site, found in record.sites.items():
            name_of = names.get(int(site), site)
            totals[name_of, "up"] = totals.get((name_of, "up"), 0) + found["up"]
            totals[name_of, "down"] = totals.get((name_of, "down"), 0) + found["down"]
    for labels, count in totals.items():
        sent.add_metric(list(labels), count)
    yield from (rounds, sent)


def _of_site(status: Status) -> Iterator[Metric]:
    """Yield the figures of a site or the proxy."""
    yield from _gauges(
        ("fcil_connected", "1 while the server answers", float(status.get("connected", False))),
        ("fcil_answer_seconds", "Seconds of the last answer", status.get("seconds")),
        ("fcil_answer_bytes", "Bytes of the last answer", status.get("bytes")),
        ("fcil_samples", "Images that the last round trained on", status.get("samples")),
        ("fcil_images", "Images of this site", status.get("images")),
        ("fcil_classes", "Classes of this site", status.get("classes")),
    )
    yield CounterMetricFamily("fcil_rounds_trained", "Rounds since the start", status.get("trained", 0))
    yield CounterMetricFamily("fcil_failures", "Failures since the start", status.get("failures", 0))


def _gauges(*given: tuple[str, str, float | None]) -> Iterable[Metric]:
    """Yield single figures; those that are not known are left out."""
    return [GaugeMetricFamily(name, text, value) for name, text, value in given if value is not None]


class Exporter(ThreadingHTTPServer):
    """Answers /metrics, /healthz and /readyz until the block ends."""

    daemon_threads = True

    def __init__(self, address: str, figures: PartyFigures) -> None:
        host, port = split_address(address, "--metrics")
        self.figures = figures
        self.registry = CollectorRegistry()
        self.registry.register(figures)
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"--metrics {address}: nothing can listen there ({reason(error)}); name another"
            ) from error

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Return the status code, the type and the text for a path."""
        plain = "text/plain; charset=utf-8"
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, generate_latest(self.registry)
        if path == "/healthz":
            hangs = PULSE.age >= allowance()
            return (503, plain, f"no sign for {PULSE.age:.0f} s\n".encode()) if hangs else (200, plain, b"alive\n")
        if path == "/readyz":
            status = self.figures.status()
            ready = bool(status.get("ready")) and PULSE.age < allowance()
            return (200 if ready else 503), plain, f"{status.get('phase', 'unknown')}\n".encode()
        return 404, plain, b"/metrics, /healthz or /readyz\n"

    def __enter__(self) -> Exporter:
        threading.Thread(target=self.serve_forever, args=(0.5,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Exporter
    timeout = IDLE
    server_version, sys_version = "fcil", ""

    def do_GET(self) -> None:
        code, kind, body = self.server.answer(self.path.partition("?")[0])
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *given: object) -> None:
        """Say nothing of requests."""
